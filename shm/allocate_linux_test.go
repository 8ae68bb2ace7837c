package shm

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAllocateInterrupted: allocating ends although signals undo each step of more than a quarter
// of a megabyte, leaves nothing out, and passes other errors on.
func TestAllocateInterrupted(t *testing.T) {
	const total, most = 200<<20 + 4096, 256 << 10
	calls, done := 0, uint64(0)
	err := inSteps(total, func(at, n uint64) error {
		calls++
		switch {
		case at != done || n == 0 || at+n > total:
			t.Fatalf("%d bytes at %d after %d", n, at, done)
		case n > most:
			return unix.EINTR
		}
		done += n
		return nil
	})
	if err != nil || done != total {
		t.Errorf("%d bytes of %d, %v", done, total, err)
	}
	if calls > 3*total/most {
		t.Errorf("%d calls", calls)
	}
	calls = 0
	if err := inSteps(total, func(uint64, uint64) error { calls++; return nil }); err != nil ||
		calls != 4 {
		t.Errorf("%d calls without signals, %v", calls, err)
	}
	err = inSteps(total, func(uint64, uint64) error { return unix.ENOSPC })
	if !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
}
