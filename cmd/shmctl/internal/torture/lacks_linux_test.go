package torture

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
)

// confinedRoles are those of a root that may not make namespaces or interfaces, as in a container.
var confinedRoles = map[string]func(){
	"confine": func() {
		runtime.LockOSThread() // what is dropped counts for the thread, and for what it executes
		for _, c := range []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN} {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(3)
			}
		}
		_ = os.Setenv("SHMRING_TEST_ROLE", "confined")
		err := syscall.Exec("/proc/self/exe", os.Args, os.Environ())
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	},
	"confined": func() {
		lacks := map[string]string{}
		for _, name := range Roles() {
			if err := Lacks(name); err != nil {
				lacks[name] = err.Error()
			}
		}
		_ = json.NewEncoder(os.Stdout).Encode(lacks)
	},
}

// TestLacks: a machine on which there can be no device process is one without the roles that need
// one, and not one that breaks promises.
func TestLacks(t *testing.T) {
	if os.Geteuid() != 0 {
		shmtest.Require(t, "root", os.ErrPermission)
	}
	out, err := shmtest.Child(t, "confine").Output()
	var lacks map[string]string
	if err != nil || json.Unmarshal(out, &lacks) != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range Roles() {
		_, lacking := lacks[name]
		if want := strings.Contains(" device wire app app2 ", " "+name+" "); lacking != want {
			t.Errorf("%s: lacks %v, want %v: %s", name, lacking, want, lacks[name])
		}
	}
}

// TestAbsent: what the machine is short of for a moment is not what it does not have.
func TestAbsent(t *testing.T) {
	for err, want := range map[error]bool{unix.EPERM: true, unix.EACCES: true, unix.ENOSYS: true,
		unix.EOPNOTSUPP: true, unix.EAFNOSUPPORT: true, errors.ErrUnsupported: true,
		unix.EMFILE: false, unix.ENFILE: false, unix.ENOMEM: false, unix.EBUSY: false,
		unix.EAGAIN: false, unix.EINTR: false, unix.ENOBUFS: false, os.ErrDeadlineExceeded: false} {
		if got := absent(fmt.Errorf("try: %w", err)); (got != nil) != want {
			t.Errorf("%v: absent: %v, want %v", err, got, want)
		}
	}
}

// TestLacksNothing: where there can be one, all roles take part.
func TestLacksNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		shmtest.Require(t, "root", os.ErrPermission)
	}
	for _, name := range Roles() {
		if err := Lacks(name); err != nil {
			shmtest.Require(t, "xdp", fmt.Errorf("%s: %w", name, err))
		}
	}
}
