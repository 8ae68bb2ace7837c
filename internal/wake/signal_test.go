package wake

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/futex"
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
