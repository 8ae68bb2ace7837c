package cq

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shmring/shmring/shm"
)

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

// TestBindEventsWhole: of two event queues that are bound at once one gets everything.
func TestBindEventsWhole(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	q, err := Create(Unnamed("q"), Options{Size: 4})
	must(err)
	var es [2]*EventQueue
	for i := range es {
		es[i], err = CreateEvents(Unnamed("e"), EventOptions{Size: 4})
		must(err)
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
	must(q.BindEvents(slow))
	must(<-other)
	q.feeders.mu.Lock()
	overruns := q.feeders.events
	q.feeders.mu.Unlock()
	q.deaths.mu.Lock()
	deaths := q.deaths.report.sink
	q.deaths.mu.Unlock()
	if overruns != deaths {
		t.Errorf("overruns go to %v, deaths to %v", overruns, deaths)
	}
	must(q.Close())
	must(es[0].Close())
	must(es[1].Close())
}

// TestDetachThatFailsTurnsNobodyAway: an event queue that nobody could find cannot be detached, and
// to try keeps nobody from writing to it, for however short a time: it does not even wait for who
// is writing.
func TestDetachThatFailsTurnsNobodyAway(t *testing.T) {
	e, err := CreateEvents(Unnamed("e"), EventOptions{Size: 4, Write: true, Shared: true})
	if err != nil {
		t.Fatal(err)
	}
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
	m := message{step: stepLane, status: 2, fds: 1 << fdLane, row: 3, generation: 4,
		queue: shm.UUID{0: 5, 15: 6}, trust: CrossUser}
	want := "shmrdv\r\n\x01\x00\x03\x00\x02\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00" +
		"\x04\x00\x00\x00\x00\x00\x00\x00\x05" + strings.Repeat("\x00", 14) + "\x06\x01" +
		strings.Repeat("\x00", 15)
	if got := string(m.encode()); got != want {
		t.Errorf("%q", got)
	}
}

// FuzzMessage: of a rendezvous message without its descriptors, at a rate that processes which meet
// do not reach: what is taken is what was sent, to the last byte, and every reason has an error.
func FuzzMessage(f *testing.F) {
	for s := stepAsk; s <= stepDone; s++ {
		for _, m := range []message{{step: s}, {step: s, status: 1}, {step: s, trust: CrossUser, row: 3,
			generation: 1 << 40, fds: stepFDs[s], queue: shm.NewUUID()}} {
			f.Add(m.encode())
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, err := rendezvous.Header(b); err != nil {
			return
		}
		m, err := decodeMessage(b)
		if err != nil {
			return
		}
		if !bytes.Equal(m.encode(), b) {
			t.Errorf("%x was taken for %+v", b, m)
		}
		if err := statusError(m.status); (err == nil) != (m.status == 0) {
			t.Errorf("status %d: %v", m.status, err)
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

func (f *lateFace) Look() (bool, error) {
	ready, err := f.face.Look()
	if f.q.looks++; f.q.looks == 1 {
		err = errors.Join(err, f.q.Signal())
	}
	return ready, err
}

// TestSignalBetweenLooks: a set takes a signal that comes between its look at the members and the
// arming of its descriptor, as it does one that was there before. Else it would end another wait.
func TestSignalBetweenLooks(t *testing.T) {
	t.Parallel()
	q, err := Create(Unnamed("q"), Options{Size: 4, Wait: WaitFD})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewWaitSet(nil, WaitSetOptions{Wait: WaitFD})
	if err != nil {
		t.Fatal(err)
	}
	late := &lateQueue{Queue: q}
	if err := s.Add(late); err != nil {
		t.Fatal(err)
	}
	if err := s.TryWait(); err != ErrWouldBlock || late.looks < 2 {
		t.Errorf("after %d looks: %v", late.looks, err)
	}
	if q.bell.TakeSignal() {
		t.Error("the signal is there still")
	}
	if err := s.TryWait(); err != nil {
		t.Errorf("with nothing there: %v", err)
	}
	if err := errors.Join(s.Remove(late), s.Close(), q.Close()); err != nil {
		t.Error(err)
	}
}
