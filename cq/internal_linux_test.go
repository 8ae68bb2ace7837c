package cq

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/pollable"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// meddler is a writer side at which others are faster: they come once after a lane was claimed, and
// once before it is given back.
type meddler struct {
	place.WriterSide
	claimed, leaving func()
}

func (m *meddler) ClaimLane(reader *shm.Object, rows []kind.RowWords, q kind.Queue) (*shm.Object,
	int, error) {
	defer m.claimed()
	return m.WriterSide.ClaimLane(reader, rows, q)
}

func (m *meddler) Leave(lane *shm.Object, closed func() bool) (bool, error) {
	m.leaving()
	return m.WriterSide.Leave(lane, closed)
}

// attachLate attaches to a queue that somebody begins to remove when the lane is claimed, and
// meddles before the lane is given back.
func attachLate(t *testing.T, d *shm.Dir, name string, state uint64, leaving func()) error {
	t.Helper()
	dir := shmtest.Got(d.Sub(name, false)).Or(t)
	w := &Writer{laneWriter{name: name}}
	w.side = &meddler{place.NewNamed(d, name, dir), func() {
		setState(t, dir, state)
	}, leaving}
	return w.opened(w.open(WriterOptions{}))
}

func setState(t *testing.T, dir *shm.Dir, state uint64) {
	t.Helper()
	obj := shmtest.Have(dir.Open(kind.ReaderFile, shm.ReadWrite)).In(t)
	words := shmtest.Got(kind.WordsOf[kind.QueueWords](obj, kind.SectQueue, 0)).Or(t)
	words.State.Store(state)
}

// dirOfItsOwn opens a directory that no other test sees, and removes it when the test ends.
func dirOfItsOwn(t *testing.T, name string) *shm.Dir {
	t.Helper()
	d := shmtest.Got(shm.OpenDir(filepath.Join(os.Getenv(shm.EnvDir), name))).Or(t)
	t.Cleanup(func() {
		_ = d.Close()
		_ = os.RemoveAll(d.Path())
	})
	return d
}

func attachTo(t *testing.T, d *shm.Dir, name string) *Writer {
	t.Helper()
	w := shmtest.Got(Attach(t.Context(), Named(d, name), WriterOptions{})).Or(t)
	return w
}

// TestAttachLeavesTheLane: a writer that finds somebody removing the queue gives back the lane that
// it claimed and does not remove it: the queue may be used again by then, by one who has the lane
// open.
func TestAttachLeavesTheLane(t *testing.T) {
	for name, before := range map[string]func(d *shm.Dir){
		"a lane that was left": func(d *shm.Dir) { must(t, attachTo(t, d, "q").Close()) },
		"a new lane":           func(*shm.Dir) {},
	} {
		d := dirOfItsOwn(t, "leaves")
		q := shmtest.Got(Create(Named(d, "q"), Options{Size: 4, MaxLanes: 1})).Or(t)
		before(d)
		must(t, q.Detach())
		err := attachLate(t, d, "q", kind.StateRemoving, func() { // it died over that, and this is next
			q = shmtest.Got(Open(Named(d, "q"), Options{Existing: true})).Or(t)
			if n, err := Read(q, make([]Msg, 4)); n != 0 || err != ErrWouldBlock {
				t.Errorf("%s: read %d, %v", name, n, err)
			}
		})
		if !errors.Is(err, ErrBusy) {
			t.Fatalf("%s: attached while it was removed: %v", name, err)
		}
		w := attachTo(t, d, "q")
		must(t, w.Post(&Entry{Context: 5}))
		if n, err := Read(q, make([]Msg, 4)); n != 1 || err != nil {
			t.Errorf("%s: read %d, %v", name, n, err)
		}
		must(t, w.Close())
		must(t, q.Close())
		must(t, collect.Remove(d, "q", collect.Options{}))
	}
}

// TestAttachGivesRowBack: a writer of another user that cannot use the lane which it has brought
// tells the reader, who knows the lane already, that the row is free. The connection stays.
func TestAttachGivesRowBack(t *testing.T) {
	q := shmtest.Have(Create(Unnamed("q"), Options{Size: 4, MaxLanes: 1, Trust: CrossUser})).In(t)
	for range 2 {
		here, conn := shmtest.Connected(t, unix.SOCK_STREAM)
		accepted := make(chan error, 1)
		go func() { accepted <- q.Accept(t.Context(), here) }()
		side := place.Join(t.Context(), conn, place.JoinOptions{Trust: uint32(CrossUser),
			MaxBytes: defaultPeerBytes})
		w := &Writer{}
		w.side = &meddler{side, func() {
			must(t, <-accepted)
			if n, err := Read(q, make([]Msg, 4)); n != 0 || err != ErrWouldBlock || q.lanes[1] == nil {
				t.Errorf("read %d, %v", n, err)
			}
			q.rows[1].Head.Store(9)
		}, func() { q.rows[1].Head.Store(0) }}
		err := w.open(WriterOptions{Trust: CrossUser})
		side.Settle(err)
		w.peer = side.Peer
		shmtest.WantErr(t, "attach", w.opened(err), ErrCorrupt)
		q.rows[1].Head.Store(0)
		if n, err := Read(q, make([]Msg, 4)); n != 0 || err != ErrWouldBlock || q.lanes[1] != nil {
			t.Errorf("then read %d, %v; the row is free: %v", n, err, q.lanes[1] == nil)
		}
	}
}

// TestAttachKeepsEntries: the lane that a writer claimed before it found that somebody removes the
// queue may hold what nobody has read, of a writer that came since its lanes were counted.
func TestAttachKeepsEntries(t *testing.T) {
	d := dirOfItsOwn(t, "entries")
	for _, state := range []uint64{kind.StateRemoving,
		kind.StateClosed} { // of one that overran, the latter
		q := shmtest.Got(Create(Named(d, "q"), Options{Size: 4, MaxLanes: 3, Lifetime: Persistent})).Or(t)
		must(t, q.Detach())
		w := attachTo(t, d, "q")
		must(t, w.Post(&Entry{Context: 5}))
		must(t, w.Close())
		err := attachLate(t, d, "q", state, func() {})
		if !errors.Is(err, ErrBusy) && !errors.Is(err, ErrClosed) {
			t.Errorf("attached while it was removed: %v", err)
		}
		dir := shmtest.Got(d.Sub("q", false)).Or(t)
		setState(t, dir, kind.StateOpen) // who removed it gives up
		must(t, dir.Close())
		if q, err = Open(Named(d, "q"), Options{Existing: true}); err != nil {
			t.Fatal(err)
		}
		if n, err := Read(q, make([]Msg, 4)); n != 1 || err != nil {
			t.Errorf("read %d, %v", n, err)
		}
		must(t, q.Close())
	}
}

// TestAttachLeavesNothing: when the queue is gone by the time that the lane is given back, the lane
// goes too, and with it the directory.
func TestAttachLeavesNothing(t *testing.T) {
	d := dirOfItsOwn(t, "nothing")
	q := shmtest.Got(Create(Named(d, "q"), Options{Size: 4, Lifetime: Persistent})).Or(t)
	must(t, q.Detach())
	err := attachLate(t, d, "q", kind.StateRemoving, func() { // who removes it did not see the lane
		dir := shmtest.Got(d.Sub("q", false)).Or(t)
		obj := shmtest.Got(dir.Open(kind.ReaderFile, shm.ReadWrite)).Or(t)
		must(t, obj.Claim(nil))
		must(t, errors.Join(obj.Unlink(), obj.Close(), dir.Close()))
	})
	if !errors.Is(err, ErrBusy) {
		t.Errorf("attached while it was removed: %v", err)
	}
	if left, err := d.List(); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestAttachWhileRemoved: writers that come while a queue is removed keep it, or leave nothing.
func TestAttachWhileRemoved(t *testing.T) {
	d := dirOfItsOwn(t, "while")
	was := collect.ContestMost
	collect.ContestMost = time.Hour // the test removes faster than a slow machine attaches
	t.Cleanup(func() { collect.ContestMost = was })
	for range 100 {
		q := shmtest.Got(Create(Named(d, "q"), Options{Size: 4, MaxLanes: 4, Lifetime: Persistent})).Or(t)
		must(t, q.Detach())
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				w, err := Attach(t.Context(), Named(d, "q"), WriterOptions{})
				if err == nil {
					err = w.Close()
				} else if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		for {
			err := Remove(Named(d, "q"))
			if _, gone := collect.Assess(d, "q", collect.Options{}); errors.Is(gone, fs.ErrNotExist) {
				break
			} else if err != nil && !errors.Is(err, ErrBusy) && !errors.Is(err, syscall.ENOTEMPTY) &&
				!errors.Is(err, shm.ErrStale) && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		}
		all.Wait()
		if left, err := d.List(); err != nil || len(left) != 0 {
			t.Fatalf("left: %v, %v", left, err)
		}
	}
}

// TestLaneMayComeFree: a lane that was left since it was looked at is tried again; one that nobody
// can have any more, whatever its writer wrote, is not waited for.
func TestLaneMayComeFree(t *testing.T) {
	d := dirOfItsOwn(t, "poisoned")
	q := shmtest.Got(Create(Named(d, "q"), Options{Size: 4, MaxLanes: 1})).Or(t)
	w := shmtest.Got(Attach(t.Context(), Named(d, "q"), WriterOptions{})).Or(t)
	dir := shmtest.Got(d.Sub("q", false)).Or(t)
	claim := place.Claim{Dir: dir, Name: "q", Queue: q.opt.attrs(), Reader: q.obj, Rows: q.rows}
	free := claim.MayComeFree
	if free() {
		t.Error("a writer that writes is contested")
	}
	gen := w.obj.Generation()
	w.words.Epochs[gen%kind.LaneEpochs].Generation.Store(0)
	if !free() {
		t.Error("one that has not begun is not")
	}
	had := q.rows[1].Bell.Parked.Load()
	q.rows[1].Bell.Parked.Store(had | kind.RowPoisoned)
	if free() {
		t.Error("one that is refused for ever is contested")
	}
	q.rows[1].Bell.Parked.Store(had)
	w.words.Epochs[gen%kind.LaneEpochs].Generation.Store(gen)
	tail := w.words.Tail.Load()
	must(t, w.Close())
	if !free() {
		t.Error("one that was left is not there to be had")
	}
	lane := shmtest.Got(dir.Open(kind.LaneFile(1), shm.ReadWrite)).Or(t)
	words := shmtest.Got(kind.WordsOf[kind.LaneWords](lane, kind.SectLane, 1)).Or(t)
	words.Tail.Store(tail + 100)
	if free() {
		t.Error("one that nobody can go on in is waited for")
	}
	words.Tail.Store(tail)
	err := lane.Claim(func() error { // who looks whether it may claim has the lock
		if !free() {
			t.Error("one that somebody looks at is not there to be had")
		}
		return ErrBusy
	})
	if !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	must(t, lane.Claim(nil))
	must(t, lane.Unlink())
	must(t, lane.Close())
	if !free() {
		t.Error("a row without a lane is not there to be had")
	}
	must(t, dir.Close())
	must(t, q.Close())
}

// TestAttachAwaitsFormerLane: what a writer of a destroyed queue, who has not noticed that yet, has
// of a new one of its name is waited for.
func TestAttachAwaitsFormerLane(t *testing.T) {
	d := dirOfItsOwn(t, "former")
	was := collect.ContestMost
	collect.ContestMost = time.Hour // the test closes faster than a slow machine attaches
	t.Cleanup(func() { collect.ContestMost = was })
	q := shmtest.Got(Create(Named(d, "q"), Options{Size: 4, MaxLanes: 1})).Or(t)
	former := attachTo(t, d, "q")
	must(t, q.Close())
	q = shmtest.Got(Create(Named(d, "q"), Options{Size: 8, MaxLanes: 1})).Or(t)
	attached := make(chan error, 1)
	go func() {
		w, err := Attach(t.Context(), Named(d, "q"), WriterOptions{})
		if err == nil {
			err = errors.Join(w.Post(&Entry{Context: 7}), w.Close())
		}
		attached <- err
	}()
	select {
	case err := <-attached:
		t.Errorf("did not wait: %v", err)
		attached <- err
	case <-time.After(20 * time.Millisecond):
	}
	must(t, former.Close())
	must(t, <-attached)
	if n, err := Read(q, make([]Msg, 4)); n != 1 || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
	must(t, q.Close())
}

// TestDeathsStarved: lanes that could not be opened for want of descriptors are looked at as soon
// as there are some, though no lane comes or goes meanwhile.
func TestDeathsStarved(t *testing.T) {
	d := dirOfItsOwn(t, "starved")
	q := shmtest.Got(Create(Named(d, "q"), Options{Size: 4})).Or(t)
	w := shmtest.Got(Attach(t.Context(), Named(d, "q"), WriterOptions{})).Or(t)
	restore := shmtest.LimitFiles(3)
	defer restore()
	early := newWriterDeaths(&q.core, 1) // nothing is seen
	restore()
	late := newWriterDeaths(&q.core, 2)
	w2 := shmtest.Got(Attach(t.Context(), Named(d, "q"), WriterOptions{})).Or(t)
	shmtest.LimitFiles(3)
	for _, m := range []*writerDeaths{early, late} {
		m.find(false)
		if m.lanes[2] != nil {
			t.Fatal("opened without a descriptor")
		}
	}
	restore()
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
	must(t, w.Close())
	must(t, w2.Close())
	must(t, q.Close())
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
	fd := c.ObjectFD()
	failed := 0
	for n := uint64(3); ; n++ {
		restore := shmtest.LimitFiles(n)
		next, err := AttachCounter(FromFD(fd, ""), CounterOptions{Wait: WaitFD})
		restore()
		if err == nil {
			must(t, next.Close())
			break
		}
		failed++
		if !errors.Is(err, syscall.EMFILE) || n > 1<<16 {
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
	other := shmtest.Got(AttachCounter(FromFD(c.ObjectFD(), ""), CounterOptions{})).Or(t)
	seat := c.seats.At(rigSeat)
	if who := seat.Owner(); who.State != shm.StateOwned {
		t.Fatal("it has no seat")
	}
	must(t, other.obj.Close())
	must(t, other.Close())
	if who := seat.Owner(); who.State != shm.StateReleased {
		t.Errorf("the seat is still that of %+v", who)
	}
}

// TestDeathsBetweenSinks: a death that one event queue had no room for is kept for the one that
// replaces it, though the row has another writer in between; with none bound only the last of a row
// is.
func TestDeathsBetweenSinks(t *testing.T) {
	q := shmtest.Got(Create(Unnamed("q"), Options{Size: 4, Trust: CrossUser})).Or(t)
	e := shmtest.Got(CreateEvents(Unnamed("e"), EventOptions{Size: 4, Write: true})).Or(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	must(t, err)
	kept := func(what string, row, want int) {
		t.Helper()
		conn := shmtest.Got(net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))).Or(t)
		here := shmtest.Got(l.AcceptUnix()).Or(t)
		accepted := make(chan error, 1)
		go func() { accepted <- q.Accept(t.Context(), here) }()
		w, err := Attach(t.Context(), Over(conn), WriterOptions{Trust: CrossUser})
		must(t, errors.Join(err, <-accepted))
		t.Cleanup(func() { must(t, errors.Join(w.Close(), conn.Close(), here.Close())) })
		if w.bit != row {
			t.Errorf("%s: row %d", what, w.bit)
		}
		if dead := q.side.TakeDead(); len(dead) != want {
			t.Errorf("%s: deaths of the row: %+v, want %d", what, dead, want)
		}
	}
	m := newWriterDeaths(&q.core, e.sinkID())
	m.close([]peerNews{{EventPeerDeath, PeerEntry{Role: PeerWriter, Lane: 1}}})
	kept("replaced", 1, 1)
	m.close([]peerNews{{EventPeerDeath, PeerEntry{Role: PeerWriter, Lane: 2}}})
	must(t, q.BindEvents(nil))
	kept("ended", 2, 0)
	must(t, errors.Join(l.Close(), q.Close(), e.Close()))
}

// TestTurnIsNoDelay: while a writer waits for one of its user who is stopped in the middle of
// attaching, its own time to attach does not run: two of those would use it up, though there is
// room.
func TestTurnIsNoDelay(t *testing.T) {
	q, err := Create(Unnamed(t.Name()), Options{Size: 4, MaxLanes: 2, Spin: -1, Trust: CrossUser})
	must(t, err)
	done := shmtest.Got(q.side.Turns().Take(t.Context(), os.Geteuid())).Or(t)
	at := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"}
	l := shmtest.Got(net.ListenUnix("unix", at)).Or(t)
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
		waits = q.side.Turns().Here(os.Geteuid()) == 2
	}
	if n, _, limited := q.side.Busy(); limited || n != 1 {
		t.Errorf("%d rendezvous, time runs: %v", n, limited)
	}
	done()
	must(t, <-attached)
	must(t, l.Close())
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	must(t, q.Close())
}

// TestTakeoverOfUnpublished: a writer that died over the publish of an error, or of a solicited
// entry, leaves no trace of that to the lane's next writer, whose first entry is neither.
func TestTakeoverOfUnpublished(t *testing.T) {
	t.Parallel()
	d := dirOfItsOwn(t, "unpublished")
	q := shmtest.Have(Create(Named(d, "q"), Options{Size: 8, MaxLanes: 1, Shared: true})).In(t)
	c := shmtest.Have(NewChannel(d)).In(t)
	must(t, c.Attach(q))
	defer func() { must(t, CloseAll(c)) }()
	w := attachTo(t, d, "q")
	must(t, w.Post(new(Entry)))
	w.words.Sol.Store(w.Next() + 1)
	w.words.Err.Store(w.Next() + 1)
	must(t, w.Close())
	shmtest.Got(Read(q, make([]Entry, 1))).Or(t)
	must(t, c.RequestNotify(q, NotifySolicited))
	w = attachTo(t, d, "q")
	defer func() { must(t, w.Close()) }()
	must(t, w.Post(new(Entry)))
	must(t, c.RequestNotify(q, NotifySolicited)) // makes the event that is due
	if ev, err := c.TryGetEvent(); err != ErrWouldBlock {
		t.Errorf("%+v, %v: nothing was solicited", ev, err)
	}
	wait := q.newWait(t.Context(), -1)
	defer wait.close()
	if ended := wait.threshold(2); ended != errReadTimedOut {
		t.Errorf("with one entry a wait for two ends with %v", ended)
	}
}

// relay is a feeder with a bell: what is posted to one queue it posts to another.
type relay struct {
	from *Queue
	to   *Writer
}

func (r relay) HoldBell() *wake.Bell { return r.from.bell }
func (relay) DropBell()              {}
func (relay) Overrun(*Queue)         {}

func (r relay) Progress() time.Duration {
	var e [1]Entry
	if n, _ := Read(r.from, e[:]); n > 0 {
		_ = r.to.Post(&e[0])
	}
	return -1
}

// TestChannelArmedBeforeDescriptor: what feeds a queue moves while somebody waits on the descriptor
// of its channel, also if the queue was armed before there was one, or fed only after that.
func TestChannelArmedBeforeDescriptor(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"armed-before", "fed-after"} {
		d := dirOfItsOwn(t, name)
		var qs [2]*Queue
		var ws [2]*Writer
		for i, name := range []string{"from", "to"} {
			qs[i] = shmtest.Have(Create(Named(d, name), Options{Size: 8, Shared: true})).In(t)
			ws[i] = attachTo(t, d, name)
			defer func() { must(t, ws[i].Close()) }()
		}
		feed := func() {
			unbind := shmtest.Got(qs[1].Bind(relay{qs[0], ws[1]}, true)).Or(t)
			t.Cleanup(unbind)
		}
		c := shmtest.Have(NewChannel(d)).In(t)
		defer func() { must(t, CloseAll(c)) }()
		must(t, c.Attach(qs[1]))
		if name == "armed-before" {
			feed()
		}
		must(t, c.RequestNotify(qs[1], NotifyAny))
		fd := shmtest.Got(c.FD()).Or(t)
		if name == "fed-after" {
			feed()
			_, err := c.TryGetEvent()
			shmtest.WantErr(t, "an event", err, ErrWouldBlock)
		}
		must(t, ws[0].Post(new(Entry)))
		shmtest.Eventually(t, name, func() bool { return pollable.Readable(uintptr(fd)) })
	}
}

// TestManyFeeders: a reader sleeps also if more feed its queue than one sleep has words for, and
// what they have ends that.
func TestManyFeeders(t *testing.T) {
	t.Parallel()
	d := dirOfItsOwn(t, "many-feeders")
	from := shmtest.Have(Create(Named(d, "from"), Options{Size: 8, Shared: true})).In(t)
	to := shmtest.Have(Create(Named(d, "to"), Options{Size: 8})).In(t)
	w, relayed := attachTo(t, d, "from"), attachTo(t, d, "to")
	defer func() { must(t, errors.Join(w.Close(), relayed.Close())) }()
	for range 2 * wake.MostWords {
		unbind := shmtest.Got(to.Bind(relay{from, relayed}, true)).Or(t)
		defer unbind()
	}
	_, err := ReadContext(t.Context(), to, make([]Entry, 1),
		ReadOptions{Timeout: 50 * time.Millisecond})
	shmtest.WantErr(t, "nothing was posted", err, ErrTimedOut)
	if n, _, _ := to.bell.Counts(); n > 20 {
		t.Errorf("slept %d times", n)
	}
	go func() { _ = w.Post(new(Entry)) }()
	shmtest.Got(ReadContext(t.Context(), to, make([]Entry, 1), ReadOptions{})).Or(t)

	// Each lane of another user takes a word too.
	others := shmtest.Have(Create(Unnamed(""), Options{Size: 8, Trust: CrossUser})).In(t)
	for n := range wake.MostWords - others.opt.MaxLanes {
		if rest := others.awaitMany(); rest != nil {
			t.Fatalf("%d feeders do not fit", n)
		}
		defer shmtest.Got(others.Bind(relay{from, relayed}, true)).Or(t)()
	}
	rest := others.awaitMany()
	if rest == nil {
		t.Fatal("too many feeders fit")
	}
	rest()
}
