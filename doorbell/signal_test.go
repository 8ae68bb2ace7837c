package doorbell

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

// expired is the deadline of a wait that must not sleep.
var expired = Wait{DeadlineNs: 1}

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

func TestSignalDuringWait(t *testing.T) {
	for name, signal := range map[string]func(q *queue, r *reader){
		"own process":   func(_ *queue, r *reader) { r.Signal() },
		"other process": func(q *queue, _ *reader) { Signal(q.arm, q.hints, nil, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			q := heapQueue(t, 1)
			r := newReader(q, readerOptions{})
			watchdog(t, q.String)
			why := make(chan outcome)
			go func() {
				_, w := r.sread(1, Wait{})
				why <- w
			}()
			for q.arm.Word.Load()&armDirect == 0 {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(2 * time.Millisecond) // now and then it sleeps in the kernel by then
			signal(q, r)
			if w := <-why; w != gotSignal {
				t.Fatal(w)
			}
		})
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

// Kick ends every sleep whatever is armed, so that a waiter looks at why.
func TestKickAndStop(t *testing.T) {
	q := heapQueue(t, 1)
	r := newReader(q, readerOptions{shared: true})
	watchdog(t, q.String)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, why := r.sread(1, Wait{Stop: stop.Load}); why != gotNothing {
				t.Error(why)
			}
		})
	}
	for r.Sleeps() < 3 {
		time.Sleep(time.Millisecond)
	}
	stop.Store(true)
	r.Kick()
	wg.Wait()
	if q.arm.Word.Load()&armFlags != 0 {
		t.Error("armed although nobody waits")
	}
}

// Mark does for a producer that died between publish and ring what it did not do any more.
func TestMarkForTheDead(t *testing.T) {
	q := heapQueue(t, 2)
	r := newReader(q, readerOptions{})
	watchdog(t, q.String)
	r.read(1)
	if more, err := r.Park(); more || err != nil {
		t.Fatal(more, err)
	}
	w := q.writer(1, ring.SeqCst)
	w.publish(3) // and dies
	if n, why := r.sread(laneSlots, Wait{DeadlineNs: spin.Now() + 1e6}); n != 0 || why != gotNothing {
		t.Fatal("a parked lane is looked at without a mark", n, why)
	}
	done := make(chan int)
	go func() {
		n, _ := r.sread(laneSlots, Wait{})
		done <- n
	}()
	r.Mark(1)
	if n := <-done; n != 3 {
		t.Fatal(n)
	}
	w.publish(2)
	r.Park()
	r.Consider(1)
	if n := r.read(laneSlots); n != 2 {
		t.Fatal(n)
	}
}

// The deadline is absolute, and a slice only shortens one sleep.
func TestDeadlines(t *testing.T) {
	q := heapQueue(t, 1)
	r := newReader(q, readerOptions{})
	for _, w := range []Wait{{}, {SliceNs: 1e6}, {SliceNs: 1e12}} {
		start := spin.Now()
		w.DeadlineNs = start + 5e6
		if _, why := r.sread(1, w); why != gotNothing {
			t.Fatal(why)
		}
		if took := spin.Now() - start; took < 5e6 {
			t.Errorf("%+v: it took %d ns", w, took)
		}
	}
	if got := (Wait{DeadlineNs: 7}).until(); got != 7 {
		t.Error(got)
	}
	sleeps := r.Sleeps()
	r.Sleep(Wait{DeadlineNs: spin.Now() + 1e12, SliceNs: 1e6})
	if r.Sleeps() != sleeps+1 {
		t.Error("a slice is no sleep")
	}
}
