package torture

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/shmtest"
)

func aiming(seed uint64, o Options) *supervisor {
	return &supervisor{o: o, rnd: rand.New(rand.NewPCG(seed, 0)),
		report: &Report{Outcome: NewOutcome(0, 0, []crash.Label{})}}
}

// TestAim: only at steps that lack, more often at those that lack more, and as the seed says.
func TestAim(t *testing.T) {
	r := roleOf("writer")
	before := map[string]uint64{}
	for _, l := range r.steps {
		before[l.String()] = 100
	}
	before[crash.Filled.String()], before[crash.Stamped.String()] = 10, 80
	s := aiming(1, Options{UntilSteps: 100, Before: before})
	s.roles = []*role{r}
	again := aiming(1, Options{UntilSteps: 100, Before: before})
	at := map[crash.Label]int{}
	for range 200 {
		l, n := s.aim(r)
		if m, k := again.aim(r); l != m || n != k {
			t.Fatalf("%v:%d, and with the same seed %v:%d", l, n, m, k)
		}
		at[l]++
	}
	if at[crash.Filled]+at[crash.Stamped] != 200 || at[crash.Stamped] == 0 ||
		at[crash.Filled] < 2*at[crash.Stamped] {
		t.Errorf("at %v", at)
	}
	s.report.Steps[crash.Filled.String()], s.report.Steps[crash.Stamped.String()] = 90, 20
	if l, _ := s.aim(r); l != crash.None {
		t.Errorf("at %v, which killed often enough", l)
	}
	for until, below := range map[uint64]int{100: 0, 101: 2} {
		if s.o.UntilSteps = until; len(s.below()) != below {
			t.Errorf("%v kill less often than %d times", s.below(), until)
		}
	}
	// Without a goal there is always something to aim at.
	if l, _ := aiming(1, Options{Before: before}).aim(r); l != crash.Filled && l != crash.Stamped {
		t.Errorf("at %v, while others killed less often", l)
	}
}

// TestPick: nobody is killed from outside who is on its way to a step, or is safe.
func TestPick(t *testing.T) {
	s := aiming(1, Options{Steps: true})
	r := &role{steps: []crash.Label{crash.Filled}}
	sent := &proc{role: r, step: crash.Filled, since: time.Now()}
	sent.spared = s.spare(sent, true)
	s.procs = []*proc{sent, {role: &role{safe: true}}, {role: r, empty: true}}
	if p := s.pick(s.canKill); p != nil {
		t.Errorf("picked %+v", p)
	}
	other := &proc{role: r, since: time.Now().Add(-time.Hour)}
	s.procs = append(s.procs, other)
	other.spared = s.spare(other, false)
	for range 20 {
		if p := s.pick(s.canKill); p != nil && p != other {
			t.Errorf("picked %+v", p)
		}
	}
	sent.since = other.since
	if !s.canKill(sent) {
		t.Error("one that does not get to its step lives for ever")
	}
}

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
	shmtest.RequireRoot(t, "root", "only root may")
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
	shmtest.RequireRoot(t, "root", "only root may")
	for _, name := range Roles() {
		if err := Lacks(name); err != nil {
			shmtest.Require(t, "xdp", fmt.Errorf("%s: %w", name, err))
		}
	}
}
