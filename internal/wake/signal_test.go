package wake

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/futex"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

func TestSignalBeforeWait(t *testing.T) {
	q := heapQueue(t, 1)
	r := newReader(q, readerOptions{})
	watchdog(t, q.String)
	Signal(q.arm, q.hints, nil, nil)
	if _, why := r.sread(1, Wait{}); why != gotSignal {
		t.Fatal("the signal is not remembered")
	}
	if _, why := r.sread(1, Wait{DeadlineNs: spin.Now() + 1e6}); why != gotNothing {
		t.Fatal("one signal ends two waits")
	}
}

// An expired timeout leaves the signal to the next wait; entries come before it; many are one.
func TestSignalStays(t *testing.T) {
	q := heapQueue(t, 1)
	r := newReader(q, readerOptions{})
	watchdog(t, q.String)
	w := q.writer(0, ring.SeqCst)
	for range 5 {
		r.Signal()
		Signal(q.arm, q.hints, nil, nil)
	}
	if _, why := r.sread(1, expired); why != gotNothing {
		t.Fatal("an expired timeout takes the signal")
	}
	w.put(1)
	if n, why := r.sread(1, Wait{}); n != 1 || why != gotEntries {
		t.Fatal("a signal comes before what is there", why)
	}
	if !r.Pending() {
		t.Fatal("nothing to look for although a signal is there")
	}
	if _, why := r.sread(1, Wait{}); why != gotSignal {
		t.Fatal("the signal is gone")
	}
	if r.TakeSignal() || r.Pending() {
		t.Fatal("many signals before a wait are more than one")
	}
}

// A signal that comes after the look at the latch, and before the sleep, is seen by the second
// look.
func TestSignalBeforeTheSecondLook(t *testing.T) {
	q := heapQueue(t, 1)
	r := newReader(q, readerOptions{})
	watchdog(t, q.String)
	asked := 0
	_, why := r.sread(1, Wait{Stop: func() bool {
		if asked++; asked == 1 {
			q.hints.latch.Store(1) // and stop there, without waking
		}
		return false
	}})
	if why != gotSignal {
		t.Fatal(why)
	}
}

// With several waiters exactly one takes each signal, and the signaller waits for it to be taken.
func TestOneWaiterTakesASignal(t *testing.T) {
	const signals = 300
	q := heapQueue(t, 1)
	r := newReader(q, readerOptions{shared: true})
	watchdog(t, q.String)
	var taken atomic.Uint64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !stop.Load() {
				if _, why := r.sread(1, Wait{Stop: stop.Load}); why == gotSignal {
					taken.Add(1)
				}
			}
		})
	}
	for i := range uint64(signals) {
		Signal(q.arm, q.hints, nil, nil)
		for taken.Load() == i {
			spin.Pause(10)
			time.Sleep(time.Microsecond)
		}
	}
	stop.Store(true)
	r.Kick()
	wg.Wait()
	if got := taken.Load(); got != signals {
		t.Fatalf("%d signals were taken, %d were sent one after the other", got, signals)
	}
}

// Mark does for a producer that died between publish and ring what it did not do any more.
func TestMarkForTheDead(t *testing.T) {
	q := heapQueue(t, 2)
	r := newReader(q, readerOptions{})
	r.read(1)
	if more, err := r.Park(); more || err != nil {
		t.Fatal(more, err)
	}
	w := q.writer(1, ring.SeqCst)
	w.publish(3) // and dies
	if n, why := r.sread(laneSlots, Wait{DeadlineNs: spin.Now() + 1e6}); n != 0 || why != gotNothing {
		t.Fatal("a parked lane is looked at without a mark", n, why)
	}
	r.Mark(1)
	if n := r.read(laneSlots); n != 3 {
		t.Fatal(n)
	}
	w.publish(2)
	r.Park()
	r.Consider(1)
	if n := r.read(laneSlots); n != 2 {
		t.Fatal(n)
	}
}

// Whoever stops a wait says so first and kicks then: a reader that was about to sleep asks.
func TestStopIsAsked(t *testing.T) {
	r := newReader(heapQueue(t, 1), readerOptions{})
	if more, err := r.Park(); more || err != nil {
		t.Fatal(more, err)
	}
	r.Sleep(Wait{DeadlineNs: spin.Now() + 2e9, Stop: func() bool { return true }})
	if r.sleeps.Load() != 0 {
		t.Error("slept although it was stopped")
	}
}

// What one set takes from the domain is there for the other sets that have the member.
func TestTakenForAllSets(t *testing.T) {
	d := newDomain(t, 1, 1, readerOptions{shared: true})
	sets := []*Set{d.NewSet(), d.NewSet()}
	for _, s := range sets {
		s.Add(0, d.r[0].Bell)
	}
	for _, s := range sets {
		if ready, err := s.Wait(nil, noWait); len(ready) != 0 || err != nil {
			t.Fatal(ready, err)
		}
	}
	d.q[0].writer(0, ring.SeqCst, d.ringer(0)).put(1)
	for i, s := range sets {
		if ready, err := s.Wait(nil, noWait); len(ready) != 1 || err != nil {
			t.Errorf("set %d: %v, %v", i, ready, err)
		}
	}
}

// A wait that ends leaves the domain armed for another one that goes on.
func TestLastWaiterDisarms(t *testing.T) {
	d := newDomain(t, 1, 1, readerOptions{shared: true})
	s := d.NewSet()
	s.Add(0, d.r[0].Bell) // is on the list, so that nobody sleeps
	d.nw = 1              // another goroutine
	d.sleep(&s.watcher, Wait{DeadlineNs: spin.Now() + 2e9})
	if d.arm.Word.Load() == 0 {
		t.Error("the domain is not armed for the other one")
	}
	d.nw = 0
	d.sleep(&s.watcher, Wait{DeadlineNs: spin.Now() + 2e9})
	if d.arm.Word.Load() != 0 {
		t.Error("the domain is armed for nobody")
	}
}

// A reader's object may name a bit that its domain has not.
func TestBitOutsideOfTheDomain(t *testing.T) {
	d := newDomain(t, 1, 1, readerOptions{})
	for _, bit := range []int{64, 1 << 20, -1, -1 << 63} {
		if r := (&DomainRinger{Arm: d.arm, Hints: d.hints, Bit: bit}); r.ring() {
			t.Errorf("bit %d rings", bit)
		}
	}
}

// TestAlarms: rings that bring the lane no further lead to a pause, also if its tail swings; those
// that do lead to none, however far they bring it.
func TestAlarms(t *testing.T) {
	for name, tt := range map[string]struct {
		tail  func(i uint64) uint64
		quiet bool
	}{
		"stands": {func(uint64) uint64 { return 5 }, true},
		"swings": {func(i uint64) uint64 { return 5 + i%2 }, true},
		"wide":   {func(i uint64) uint64 { return 5 + i%2<<40 }, true},
		"grows":  {func(i uint64) uint64 { return 5 + i }, false},
		"leaps":  {func(i uint64) uint64 { return 5 + i*1000 }, false},
		"wraps":  {func(i uint64) uint64 { return 1<<64 - 5 + i }, false},
	} {
		a := alarms{tail: tt.tail(0)}
		for i := range uint64(3 * falseAlarms) {
			a.note(tt.tail(i + 1))
		}
		if got := a.quietNs != 0; got != tt.quiet {
			t.Errorf("%s: a pause %v", name, got)
		}
	}
}

// TestDozesOnLanes: a reader that listens to a lane of another user does not sleep over its rings.
func TestDozesOnLanes(t *testing.T) {
	if err := futex.HasWaitMany(); err != nil {
		t.Skip(err)
	}
	q := heapQueue(t, 1)
	r := newReader(q, readerOptions{})
	var rung atomic.Uint32
	r.listen(0, &rung)
	rung.Add(1)
	deadline := spin.Now() + int64(time.Minute)
	r.doze([]futex.Watched{{Value: uint64(r.hints.epoch.Load()), Word: r.hints.epoch}}, deadline)
	if spin.Now() >= deadline {
		t.Error("slept until the deadline")
	}
}

// soon is a deadline after which a test that should have been woken knows that it was not.
func soon() int64 { return spin.Now() + int64(5e9) }

// A publish that the reader's count has not seen, and whose mark comes after the second look, must
// not be counted twice: in the index that was stored and in what was missing.
func TestThresholdCountsFromWhatWasCounted(t *testing.T) {
	for _, shared := range []bool{false, true} {
		q := heapQueue(t, 1)
		r := newReader(q, readerOptions{shared: shared})
		w := q.writer(0, ring.SeqCst)
		w.put(1)
		looks := 0
		r.level = func(int) {
			if looks++; looks == 2 { // after the count, as the indices are stored
				w.publish(1)
			}
		}
		woken := make(chan struct{})
		stop := func() bool { // after the second look
			r.level = nil
			w.Published(w.prod.Tail(), 0)
			go func() {
				w.put(1)
				close(woken)
			}()
			return false
		}
		if got := r.waiting(3, Wait{DeadlineNs: soon(), Stop: once(stop)}); got != 3 {
			t.Fatalf("%d entries", got)
		}
		<-woken
		if w.Wakes() == 0 {
			t.Errorf("shared %v: the publish that completes the threshold does not ring", shared)
		}
	}
}

// once returns f for its first call, and then what says no.
func once(f func() bool) func() bool {
	done := false
	return func() bool {
		if done {
			return false
		}
		done = true
		return f()
	}
}

// A user who sleeps on the descriptor is told of the first entry, whatever another goroutine waits
// for.
func TestThresholdDoesNotGateTheDescriptor(t *testing.T) {
	q := heapQueue(t, 1)
	q.arm.Word.Store(armFD)
	r := newReader(q, readerOptions{shared: true})
	r.store(armFD)
	w := q.writer(0, ring.SeqCst)
	stop := once(func() bool {
		w.put(1)
		if w.Wakes() != 1 {
			t.Error("the first entry does not ring")
		}
		return false
	})
	if got := r.waiting(3, Wait{DeadlineNs: spin.Now() + 1e6, Stop: stop}); got != 1 {
		t.Fatalf("%d entries", got)
	}
}

// A goroutine that waits for more leaves entries in a parked lane. Another one that reads them
// makes the lane hot, and has to tell the first.
func TestThresholdAndReaderOnOneQueue(t *testing.T) {
	q := heapQueue(t, 1)
	r := newReader(q, readerOptions{shared: true})
	w := q.writer(0, ring.SeqCst)
	w.put(1)
	done := make(chan uint64)
	asleep := make(chan struct{})
	go func() {
		done <- r.waiting(3, Wait{DeadlineNs: soon(),
			Stop: once(func() bool { close(asleep); return false })})
	}()
	<-asleep
	r.Lock()
	r.Take() // the first look after it was parked
	r.Heat()
	if n := r.read(laneSlots); n != 1 {
		t.Errorf("%d entries", n)
	}
	r.Unlock()
	start := spin.Now()
	w.put(2)
	for range 3 {
		w.put(1)
	}
	if n := <-done; n < 3 {
		t.Errorf("the wait ends with %d entries", n)
	}
	if took := spin.Now() - start; took > 4e9 {
		t.Errorf("it took the deadline to see them: %d ns", took)
	}
	r.Lock()
	defer r.Unlock()
	r.read(laneSlots)
	if r.broken != nil || r.count.Load() != 6 {
		t.Error(r.broken, r.count.Load())
	}
}

// The wake index never lies beyond what the lane can hold, nor at or below what is there.
func TestWakeIndices(t *testing.T) {
	for _, c := range []struct {
		lanes, there int // entries in lane 0
		missing      uint64
		zero, others uint64
	}{
		{lanes: 1, there: 0, missing: 5, zero: 5},
		{lanes: 1, there: 3, missing: 5, zero: 8},
		{lanes: 2, there: 3, missing: 5, zero: 6, others: 3},
		{lanes: 3, there: 3, missing: 2, zero: 4, others: 1},
		{lanes: 1, there: 60, missing: 500, zero: laneSlots},
		{lanes: 2, there: 10, missing: 1 << 62, zero: laneSlots, others: laneSlots},
	} {
		q := heapQueue(t, c.lanes)
		r := newReader(q, readerOptions{})
		q.writer(0, ring.SeqCst).put(c.there)
		r.Take()
		if _, err := r.Park(); err != nil {
			t.Fatal(err)
		}
		r.setIndices(c.missing)
		if got := q.row(0).Index.Load(); got != c.zero {
			t.Errorf("%+v: lane 0 rings at %d", c, got)
		}
		for bit := 1; bit < c.lanes; bit++ {
			if got := q.row(bit).Index.Load(); got != c.others {
				t.Errorf("%+v: lane %d rings at %d", c, bit, got)
			}
		}
	}
}

// An error in a batch ends a wait for more, and so does a signal.
func TestThresholdUrgent(t *testing.T) {
	q := heapQueue(t, 1)
	w := q.writer(0, ring.SeqCst)
	q.row(0).Index.Store(10)
	q.arm.Word.Store(armDirect | armThr | 1)
	w.put(1)
	if w.Wakes() != 0 {
		t.Fatal("one of ten entries rings")
	}
	w.publish(1)
	w.Published(w.prod.Tail(), HoldsError)
	if w.Wakes() != 1 {
		t.Fatal("an urgent entry does not ring")
	}
	q.arm.Word.Store(armDirect | armThr | 2)
	w.put(7)
	if w.Wakes() != 1 {
		t.Fatal("nine of ten entries ring")
	}
	w.put(1)
	if w.Wakes() != 2 {
		t.Fatal("the tenth entry does not ring")
	}
}

// Entries that are not enough yet do not wake a reader that waits for many, and errors do.
func TestNoWakeBelowTheIndex(t *testing.T) {
	q := heapQueue(t, 1)
	r := newReader(q, readerOptions{})
	w := q.writer(0, ring.SeqCst)
	stop := once(func() bool { // asked when all is armed
		w.put(1)
		w.put(1)
		if w.Wakes() != 0 {
			t.Errorf("%d wakes for two entries of four", w.Wakes())
		}
		w.publish(1)
		w.Published(w.prod.Tail(), HoldsError)
		if w.Wakes() != 1 {
			t.Errorf("%d wakes for an error", w.Wakes())
		}
		return true
	})
	r.Take()
	wait := Wait{DeadlineNs: soon(), Stop: stop, Missing: 4, Takes: r.takes}
	if more, err := r.Park(); more || err != nil {
		t.Fatal(more, err)
	}
	r.Sleep(wait)
}

// buffered is a lane whose writer has published an entry that sits in its processor's store buffer:
// the reader sees it when it has run a barrier.
type buffered struct {
	b    *Bell
	paid uint64 // barriers before
}

func (l *buffered) Level() (head, tail uint64) {
	if l.b != nil && l.b.barriers.Load() > l.paid {
		return 0, 1
	}
	return 0, 0
}

func (l *buffered) Solicited() uint64 { return 0 }

// passedOn is a queue whose one lane, hot, was taken over by a writer that leaves it to the reader
// to pay, after one that did not. The successor has attached, and then published without a fence:
// it saw that its lane is hot.
func passedOn(t *testing.T) (*Bell, *queue) {
	shmtest.Require(t, "membarrier", barrier.Register())
	q := heapQueue(t, 1)
	q.row(0).Parked.Store(0)
	lane := &buffered{}
	c := LaneConfig{Row: q.row(0), Source: lane, Capacity: laneSlots}
	b := NewBell(Config{Arm: q.arm, Hints: q.hints, Lanes: 1})
	b.marked = func(bit int) {
		c.ReaderPays = true
		b.Add(bit, c)
	}
	b.Add(0, c)
	q.writer(0, ring.Release).Announce()
	lane.b = b
	return b, q
}

func TestSuccessorDoesNotPay(t *testing.T) {
	b, _ := passedOn(t)
	if more, err := b.Park(); more || err != nil || b.barriers.Load() != 0 {
		t.Fatalf("parked as the first writer's: %v, %v, %d barriers", more, err, b.barriers.Load())
	}
	b.Take()
	b.Heat()
	if more, err := b.Park(); !more || err != nil {
		t.Errorf("the reader would sleep on an entry: %v, %v, %d barriers", more, err, b.barriers.Load())
	}
}

// TestSuccessorDoesNotPaySet: another goroutine takes the mark, and the set has nothing else.
func TestSuccessorDoesNotPaySet(t *testing.T) {
	b, _ := passedOn(t)
	d := NewDomain(new(Arm), must(MapDomain(words8(int(DomainBytes(1))), 1)), 1)
	s := d.NewSet()
	s.Add(0, b)
	if _, err := b.Park(); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	s.todo.clear(0) // it has found the member empty
	d.mu.Unlock()
	b.Take()
	if ready, err := s.Wait(nil, noWait); !slices.Equal(ready, []int{0}) || err != nil {
		t.Errorf("ready are %v, %v; want the member whose lane has an entry", ready, err)
	}
}
