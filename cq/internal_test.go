package cq

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

var must = shmtest.Must

// foreign is an object of another package that is bound to something here.
type foreign struct{}

func (foreign) Close() error { return nil }

// TestClosingOrder: one of each kind, in every order, is closed in one and the same order.
func TestClosingOrder(t *testing.T) {
	t.Parallel()
	want := []io.Closer{foreign{}, &Writer{}, &MemoryRegion{}, &Queue{}, &Counter{},
		&AddressVector{}, &EventQueue{}, &Channel{}, &WaitSet{}}
	given := append([]io.Closer{nil, (*Queue)(nil)}, want...)
	some := given[3:] // the order of what is foreign is its own
	var permute func(n int)
	permute = func(n int) { // by swapping: Heap's algorithm
		if n == 1 {
			if got := closingOrder(given); !equalKinds(got, want) {
				t.Fatalf("%T becomes %T", given, got)
			}
			return
		}
		for i := range n {
			permute(n - 1)
			if n%2 == 0 {
				some[i], some[n-1] = some[n-1], some[i]
			} else {
				some[0], some[n-1] = some[n-1], some[0]
			}
		}
	}
	permute(len(some))
	last := []io.Closer{&shm.Dir{}, &shm.Object{}, &WaitSet{}, &PollSet{}, &EventWriter{}}
	got := closingOrder(last)
	for i := range got {
		if got[len(got)-1-i] != last[i] {
			t.Errorf("%d is %T", i, got[i])
		}
	}
}

func equalKinds(a, b []io.Closer) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if reflect.TypeOf(a[i]) != reflect.TypeOf(b[i]) {
			return false
		}
	}
	return true
}

// slowSink lets another call come between its two halves.
type slowSink struct {
	EventSink
	binds   int
	between func()
}

func (s *slowSink) bind() error {
	if s.binds++; s.binds == 2 {
		s.between()
	}
	return s.EventSink.bind()
}

// TestSignalMeanwhile: of a reader that leaves between the look at it and the end of the signal it
// counts whether it took that, whatever its end looks like to who signals.
func TestSignalMeanwhile(t *testing.T) {
	t.Parallel()
	for _, sees := range []error{nil, syscall.ENXIO} {
		q, err := Create(Unnamed("q"), Options{Size: 4, Spin: -1})
		must(t, err)
		hints, err := hintsOf(q.obj, true, q.opt)
		must(t, err)
		q.Signal()
		if err := signaled(q.obj, hints, sees); err != sees {
			t.Errorf("there is one, it sees %v: %v", sees, err)
		}
		must(t, q.obj.Release())
		if err := signaled(q.obj, hints, sees); !errors.Is(err, ErrPeerGone) {
			t.Errorf("it left, it sees %v: %v", sees, err)
		}
		_, err = ReadContext(t.Context(), q, make([]Entry, 1), ReadOptions{})
		if !errors.Is(err, ErrSignaled) {
			t.Error(err)
		}
		must(t, signaled(q.obj, hints, sees)) // it took it
		must(t, q.Close())
	}
}

// TestBindEventsWhole: of two event queues that are bound at once one gets everything.
func TestBindEventsWhole(t *testing.T) {
	q := shmtest.Got(Create(Unnamed("q"), Options{Size: 4})).Or(t)
	var es [2]*EventQueue
	for i := range es {
		es[i] = shmtest.Got(CreateEvents(Unnamed("e"), EventOptions{Size: 4})).Or(t)
	}
	other := make(chan error, 1)
	slow := &slowSink{EventSink: es[0], between: func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			other <- q.BindEvents(es[1])
		}()
		select {
		case <-done:
		case <-time.After(50 * time.Millisecond): // it waits its turn
		}
	}}
	must(t, q.BindEvents(slow))
	must(t, <-other)
	q.overrunTo.mu.Lock()
	overruns := q.overrunTo.sink
	q.overrunTo.mu.Unlock()
	q.deaths.mu.Lock()
	deaths := q.deaths.report.sink
	q.deaths.mu.Unlock()
	if overruns != deaths {
		t.Errorf("overruns go to %v, deaths to %v", overruns, deaths)
	}
	must(t, q.Close())
	must(t, es[0].Close())
	must(t, es[1].Close())
}

// TestDetachThatFailsTurnsNobodyAway: an event queue that nobody could find cannot be detached, and
// to try keeps nobody from writing to it, for however short a time: it does not even wait for who
// is writing.
func TestDetachThatFailsTurnsNobodyAway(t *testing.T) {
	e, err := CreateEvents(Unnamed("e"), EventOptions{Size: 4, Write: true, Shared: true})
	must(t, err)
	if !e.own.lock() {
		t.Fatal("shut")
	}
	refused := make(chan error, 1)
	go func() { refused <- e.Detach() }()
	select {
	case err = <-refused:
	case <-time.After(20 * time.Second):
		t.Error("it shuts the lane first")
	}
	e.own.unlock()
	if err == nil {
		err = <-refused
	}
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if err = e.Close(); err != nil {
		t.Error(err)
	}
}

// TestMessageBytes: programs of before say the same.
func TestMessageBytes(t *testing.T) {
	m := place.Message{Step: place.StepLane, Status: 2, FDs: 1 << place.FDLane, Row: 3, Generation: 4,
		Queue: shm.UUID{0: 5, 15: 6}, Trust: uint32(CrossUser)}
	want := "shmrdv\r\n\x01\x00\x03\x00\x02\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00" +
		"\x04\x00\x00\x00\x00\x00\x00\x00\x05" + strings.Repeat("\x00", 14) + "\x06\x01" +
		strings.Repeat("\x00", 15)
	if got := string(m.Encode()); got != want {
		t.Errorf("%q", got)
	}
}

// FuzzMessage: of a rendezvous message without its descriptors, at a rate that processes which meet
// do not reach: what is taken is what was sent, to the last byte, and every reason has an error.
func FuzzMessage(f *testing.F) {
	for s := place.StepAsk; s <= place.StepDone; s++ {
		for _, m := range []place.Message{{Step: s}, {Step: s, Status: 1}, {Step: s,
			Trust: uint32(CrossUser), Row: 3, Generation: 1 << 40, FDs: 1 << place.FDLane,
			Queue: shm.NewUUID()}} {
			f.Add(m.Encode())
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, err := place.Rendezvous.Header(b); err != nil {
			return
		}
		m, err := place.DecodeMessage(b)
		if err != nil {
			return
		}
		if !bytes.Equal(m.Encode(), b) {
			t.Errorf("%x was taken for %+v", b, m)
		}
		if err := place.Rendezvous.No(m.Status, nil); (err == nil) != (m.Status == 0) {
			t.Errorf("status %d: %v", m.Status, err)
		}
	})
}

// lateQueue is a queue whose signal comes right after a set has looked at it for the first time.
type lateQueue struct {
	*Queue
	looks int
}

type lateFace struct {
	face
	q *lateQueue
}

func (l *lateQueue) join(signals bool) (int, face, error) {
	bit, f, err := l.Queue.join(signals)
	return bit, &lateFace{f, l}, err
}

func (f *lateFace) Look() (more, signaled bool, err error) {
	more, signaled, err = f.face.Look()
	if f.q.looks++; f.q.looks == 1 {
		err = errors.Join(err, f.q.Signal())
	}
	return more, signaled, err
}

// TestSignalBetweenLooks: a set takes a signal that comes between its look at the members and the
// arming of its descriptor, as it does one that was there before. Else it would end another wait.
func TestSignalBetweenLooks(t *testing.T) {
	t.Parallel()
	q := shmtest.Got(Create(Unnamed("q"), Options{Size: 4, Wait: WaitFD})).Or(t)
	s := shmtest.Got(NewWaitSet(nil, WaitSetOptions{Wait: WaitFD})).Or(t)
	late := &lateQueue{Queue: q}
	must(t, s.Add(late))
	if err := s.TryWait(); err != ErrWouldBlock || late.looks < 2 {
		t.Errorf("after %d looks: %v", late.looks, err)
	}
	if q.bell.TakeSignal() {
		t.Error("the signal is there still")
	}
	if err := s.TryWait(); err != nil {
		t.Errorf("with nothing there: %v", err)
	}
	must(t, errors.Join(s.Remove(late), s.Close(), q.Close()))
}

// seatRig is a counter in whose next seat tests die.
type seatRig struct {
	*testing.T
	c *Counter
}

const rigSeat = 1

// Words of a seat's record, see package shm.
const (
	seatGen, seatStart, seatDeath, seatTally = 0, 24, 32, 64
)

func newSeatRig(t *testing.T) seatRig {
	t.Helper()
	c := shmtest.Got(CreateCounter(Unnamed("seats"), CounterOptions{})).Or(t)
	t.Cleanup(func() {
		must(t, c.Close())
	})
	return seatRig{t, c}
}

// word is one of the seat's record.
func (r seatRig) word(at int) []byte {
	return r.c.last.Bytes()[kind.OffCounterRows+rigSeat*shm.SeatBytes+at:]
}

func (r seatRig) load(at int) uint64     { return binary.NativeEndian.Uint64(r.word(at)) }
func (r seatRig) store(at int, v uint64) { binary.NativeEndian.PutUint64(r.word(at), v) }

// lives takes the seat.
func (r seatRig) lives() *shm.Seat {
	r.Helper()
	s, err := r.c.seats.Take()
	if err != nil || s.Index() != rigSeat {
		r.Fatalf("seat %+v, %v", s, err)
	}
	return s
}

// dies leaves the seat as one who was killed there, and returns its generation.
func (r seatRig) dies() uint64 {
	r.Helper()
	s := r.lives()
	g := s.Owner().Generation
	s.Leave()
	r.store(seatStart, r.load(seatStart)-1) // one with our number that began before us is gone
	r.store(seatGen, g)
	return g
}

// news looks, and wants the death of a generation, or nothing if that is 0.
func (r seatRig) news(what string, m *userDeaths, generation, more uint64) []peerNews {
	r.Helper()
	got := m.look()
	for n := 0; n < 20_000 && len(got) == 0 && generation != 0; n++ {
		time.Sleep(time.Millisecond) // the notice of who is not in the record may come later
		got = m.look()
	}
	if generation == 0 && len(got) == 0 {
		return got
	}
	if len(got) != 1 || got[0].Generation != generation || got[0].More != more ||
		got[0].Lane != rigSeat || got[0].PID != shm.Self().PID || got[0].kind != EventPeerDeath {
		r.Errorf("%s: %+v, want the death of %d and %d more", what, got, generation, more)
	}
	return got
}

// TestSeatDeaths: every death in a seat is told or counted, once, whenever somebody looks.
func TestSeatDeaths(t *testing.T) {
	r := newSeatRig(t)
	r.dies()
	m := newUserDeaths(r.c)
	defer m.close(nil)
	r.news("before it began", m, 0, 0)
	r.news("seen dead", m, r.dies(), 0)
	r.news("again", m, 0, 0)
	s := r.lives()
	r.news("told already", m, 0, 0)
	s.Leave()
	r.news("closed", m, 0, 0)
	last := r.dies()
	s = r.lives()
	r.news("seen in the record only", m, last, 0)
	r.news("again", m, 0, 0)
	s.Leave()
	for range 4 {
		last = r.dies()
	}
	r.lives().Leave()
	r.news("four between two looks, and one who left", m, last, 3)
	r.news("seen dead", m, r.dies(), 0)
	last = r.dies()
	s = r.lives()
	r.news("one of two is told already", m, last, 0)
	s.Leave()
	last = r.dies()
	s = r.lives()
	r.store(seatGen, 0) // he was killed before he noted himself
	r.news("recorded by one who was killed over it", m, last, 0)
	s.Leave()
	r.news("once", m, 0, 0)
}

// TestSeatDeathsHalfRecorded: who begins to look while the record of a death is being replaced, or
// was left so, makes of what was before no news, and counts from there.
func TestSeatDeathsHalfRecorded(t *testing.T) {
	r := newSeatRig(t)
	early := newUserDeaths(r.c)
	defer early.close(nil)
	for range 3 {
		r.dies()
	}
	last := r.load(seatGen)
	r.lives().Leave()
	r.news("three", early, last, 2)
	for _, counted := range []bool{false, true} {
		r.dies()
		r.store(seatDeath, 0)
		if counted {
			r.store(seatTally, (r.load(seatTally)>>16+1)<<16|r.load(seatGen))
		}
		late := newUserDeaths(r.c)
		r.news("early", early, r.load(seatGen), 0)
		r.news("before it began", late, 0, 0)
		last = r.dies()
		r.lives().Leave()
		r.news("early", early, last, 0)
		r.news("late", late, last, 0)
		late.close(nil)
	}
	// What a record claims is bounded, and never goes round.
	last = r.dies()
	r.store(seatTally, 0)
	r.lives().Leave()
	r.news("with a count that fell", early, last, 0)
}

// TestSeatDeathsKept: what one event queue had no room for reaches the next one that is looked for,
// also when there was another in between for no time at all.
func TestSeatDeathsKept(t *testing.T) {
	r := newSeatRig(t)
	m := newUserDeaths(r.c)
	last := r.dies()
	r.lives().Leave()
	m.close(r.news("dead", m, last, 0))
	m.close(nil)
	m.close(r.news("for the third", m, last, 0))
	r.news("for the fourth", m, last, 0)
	m.close(nil)
}

// lateSink notes whether it got its room back while deaths could still be reported to it.
type lateSink struct {
	EventSink
	q     *Queue
	early bool
}

func (s *lateSink) returnCredits(n int) {
	s.q.deaths.mu.Lock()
	s.early = s.early || s.q.deaths.report != nil && s.q.deaths.report.sink == s
	s.q.deaths.mu.Unlock()
	s.EventSink.returnCredits(n)
}

// TestSinkReplacedWhole: a death that waits for room at one event queue goes to the one that
// replaces it, not into the room that the former one gets back by that.
func TestSinkReplacedWhole(t *testing.T) {
	q := shmtest.Have(Create(Unnamed("q"), Options{Size: 4})).In(t)
	e := shmtest.Have(CreateEvents(Unnamed("e"), EventOptions{Size: 4})).In(t)
	was := &lateSink{EventSink: e, q: q}
	for _, sink := range []EventSink{was, e, was, nil} {
		must(t, q.BindEvents(sink))
	}
	if was.early {
		t.Error("its room came back before its deaths ended")
	}
}
