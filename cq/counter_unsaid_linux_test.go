package cq

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/shm"
)

// TestSeatDeathOutlivesFailedOpen: an open that fails for want of descriptors, wherever, does not
// take back what the row says of the one who died in that seat.
func TestSeatDeathOutlivesFailedOpen(t *testing.T) {
	c, _, dead := seatRig(t)
	row := &c.words.Rows[1] // the next seat
	row.SitDown(100, dead)
	m := newCounterMourner(c)
	defer m.close(nil)
	var had unix.Rlimit
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Getrlimit(unix.RLIMIT_NOFILE, &had))
	limit := func(n uint64) {
		must(unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: had.Max}, nil))
	}
	defer limit(had.Cur)
	fd := c.ObjectFD()
	failed := 0
	for n := uint64(3); ; n++ {
		limit(n)
		next, err := OpenCounterFD(fd, CounterOptions{Wait: WaitFD})
		limit(had.Cur)
		if err == nil {
			must(next.Close())
			break
		}
		failed++
		if !errors.Is(err, syscall.EMFILE) || n > had.Cur {
			t.Fatalf("with %d descriptors: %v", n, err)
		}
		if row.Mark.Load() != 100 && row.FormerMark.Load() != 100 {
			t.Fatalf("with %d descriptors the death is gone: %v", n, err)
		}
	}
	if failed == 0 || row.FormerMark.Load() != 100 {
		t.Errorf("%d failed, and then the record has %d", failed, row.FormerMark.Load())
	}
}

// TestSeatOfClosedIsNobodys: a handle that is closed takes its row back, also if nothing can be
// mapped any more.
func TestSeatOfClosedIsNobodys(t *testing.T) {
	c, _, _ := seatRig(t)
	m := newCounterMourner(c)
	defer m.close(nil)
	other, err := OpenCounterFD(c.ObjectFD(), CounterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if mark := c.words.Rows[1].Mark.Load(); mark == 0 {
		t.Fatal("it has no row")
	}
	if err := other.obj.Close(); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if mark := c.words.Rows[1].Mark.Load(); mark != 0 {
		t.Errorf("the row is still that of %d", mark)
	}
	c.words.Rows[1].SitDown(100, shm.Self())
	wantNews(t, "closed", m, 0, 0)
}
