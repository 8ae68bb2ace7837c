package shm

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpenWithoutDescriptors: a name that is not there is not there, though the system has no
// descriptor to look with; one that is there cannot be opened.
func TestOpenWithoutDescriptors(t *testing.T) {
	d := openTestDir(t)
	o, err := d.Create("there", specFor(""), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(o.Unlink(), o.Close()); err != nil {
			t.Error(err)
		}
	}()
	var had unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &had); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Cur: 0, Max: had.Max}
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &none, nil); err != nil {
		t.Fatal(err)
	}
	_, missing := d.Open("missing", ReadOnly)
	_, there := d.Open("there", ReadOnly)
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &had, nil); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(missing, fs.ErrNotExist) || !errors.Is(there, syscall.EMFILE) {
		t.Errorf("missing: %v, there: %v", missing, there)
	}
}
