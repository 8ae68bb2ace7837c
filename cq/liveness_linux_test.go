package cq

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/shm"
)

// starvedSide is a queue's directory in a process that has no descriptor left.
type starvedSide struct {
	readerSide
	starved bool
}

func (h *starvedSide) openLane(bit int) (*shm.Object, error) {
	if h.starved {
		return nil, syscall.EMFILE
	}
	return h.readerSide.openLane(bit)
}

// TestDeathsStarved: lanes that could not be opened for want of descriptors are looked at as soon
// as there are some, though no lane comes or goes meanwhile.
func TestDeathsStarved(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	d := dirOfItsOwn(t, "starved")
	q, err := Create(Named(d, "q"), Options{Size: 4})
	must(err)
	w, err := Attach(t.Context(), Named(d, "q"), WriterOptions{})
	must(err)
	h := &starvedSide{readerSide: q.side, starved: true}
	q.side = h
	early := newWriterDeaths(&q.core, 1) // nothing is seen
	h.starved = false
	late := newWriterDeaths(&q.core, 2)
	w2, err := Attach(t.Context(), Named(d, "q"), WriterOptions{})
	must(err)
	h.starved = true
	for _, m := range []*writerDeaths{early, late} {
		m.find(false)
		if m.lanes[2] != nil {
			t.Fatal("opened without a descriptor")
		}
	}
	h.starved = false
	for _, m := range []*writerDeaths{early, late} {
		m.find(false)
		if m.lanes[1] == nil || m.lanes[2] == nil {
			t.Errorf("lanes %v after there are descriptors", m.lanes)
		}
		// What was there before the look began has only its last writer for news.
		if old := m.old[1]; old != (m == early) {
			t.Errorf("row 1 is old: %v", old)
		}
		if m.old[3] {
			t.Error("a row without a lane is old")
		}
		m.close(nil)
	}
	must(w.Close())
	must(w2.Close())
	must(q.Close())
}

// TestSeatDeathOutlivesFailedOpen: an open that fails for want of descriptors, wherever, does not
// take back what the row says of the one who died in that seat.
func TestSeatDeathOutlivesFailedOpen(t *testing.T) {
	r := newSeatRig(t)
	c, died := r.c, r.dies()
	seat := c.seats.At(rigSeat)
	isKnown := func() bool {
		all := seat.Deaths()
		return len(all) == 1 && all[0].Generation == died ||
			seat.Owner().Generation == died && seat.Owner().State == shm.StateOwned
	}
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
		next, err := AttachCounter(FromFD(fd, ""), CounterOptions{Wait: WaitFD})
		limit(had.Cur)
		if err == nil {
			must(next.Close())
			break
		}
		failed++
		if !errors.Is(err, syscall.EMFILE) || n > had.Cur {
			t.Fatalf("with %d descriptors: %v", n, err)
		}
		if !isKnown() {
			t.Fatalf("with %d descriptors the death is gone: %v", n, err)
		}
	}
	if failed == 0 || !isKnown() {
		t.Errorf("%d failed, and then the record has %+v", failed, seat.Deaths())
	}
}

// TestSeatOfClosedIsNobodys: a handle that is closed takes its row back, also if nothing can be
// mapped any more.
func TestSeatOfClosedIsNobodys(t *testing.T) {
	c := newSeatRig(t).c
	other, err := AttachCounter(FromFD(c.ObjectFD(), ""), CounterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seat := c.seats.At(rigSeat)
	if who := seat.Owner(); who.State != shm.StateOwned {
		t.Fatal("it has no seat")
	}
	if err := other.obj.Close(); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if who := seat.Owner(); who.State != shm.StateReleased {
		t.Errorf("the seat is still that of %+v", who)
	}
}

// TestTurnIsNoDelay: while a writer waits for one of its user who is stopped in the middle of
// attaching, its own time to attach does not run: two of those would use it up, though there is
// room.
func TestTurnIsNoDelay(t *testing.T) {
	q, err := Create(Unnamed(t.Name()), Options{Size: 4, MaxLanes: 2, Spin: -1, Trust: CrossUser})
	noError(t, err)
	h := q.side.(*unnamedReader)
	done, err := h.turns.take(t.Context(), os.Geteuid())
	noError(t, err)
	at := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"}
	l, err := net.ListenUnix("unix", at)
	noError(t, err)
	served, attached := make(chan error, 1), make(chan error, 1)
	go func() { served <- q.Serve(l, nil) }()
	go func() {
		conn, err := net.DialUnix("unix", nil, at)
		if err == nil {
			var w *Writer
			w, err = Attach(t.Context(), Over(conn), WriterOptions{Trust: CrossUser})
			if err == nil {
				err = w.Close()
			}
			err = errors.Join(err, conn.Close())
		}
		attached <- err
	}()
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		select {
		case err := <-attached:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		h.turns.mu.Lock()
		waits = h.turns.users[os.Geteuid()].here == 2
		h.turns.mu.Unlock()
	}
	h.mu.Lock()
	for m := range h.meetings {
		if until, is := m.Context().Deadline(); is || m.Limited() {
			t.Errorf("it is waited for until %v", until)
		}
	}
	if n := len(h.meetings); n != 1 {
		t.Errorf("%d rendezvous", n)
	}
	h.mu.Unlock()
	done()
	noError(t, <-attached)
	noError(t, l.Close())
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	noError(t, q.Close())
}
