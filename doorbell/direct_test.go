package doorbell

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

var orders = []ring.Order{ring.SeqCst, ring.Release}

// registered makes this process one whose release stores a reader can order.
func registered(t testing.TB, o ring.Order) {
	t.Helper()
	if o == ring.Release {
		shmtest.Require(t, "membarrier", barrier.Register())
	}
}

// produceAll starts a producer for each lane and returns where each reports its end.
func produceAll(q *queue, o ring.Order, each uint64) chan error {
	errs := make(chan error, q.lanes)
	for bit := range q.lanes {
		w := q.writer(bit, o)
		go func() { errs <- w.run(each, newPace(uint64(bit))) }()
	}
	return errs
}

// Lanes in one and in several words of bits, known from the start or by their first mark, one
// reader and several: every entry comes once, in order, and nobody sleeps for ever.
func TestDirectRead(t *testing.T) {
	total := uint64(60_000)
	if testing.Short() || raceEnabled {
		total /= 6
	}
	for _, o := range orders {
		for _, lanes := range []int{1, 3, 130} {
			for _, readers := range []int{1, 3} {
				name := fmt.Sprintf("%v/lanes=%d/readers=%d", o, lanes, readers)
				t.Run(name, func(t *testing.T) {
					directRead(t, o, lanes, readers, total/uint64(lanes))
				})
			}
		}
	}
}

func directRead(t *testing.T, o ring.Order, lanes, readers int, each uint64) {
	registered(t, o)
	q := heapQueue(t, lanes)
	watchdog(t, q.String)
	r := newReader(q, readerOptions{order: o, shared: readers > 1, lazy: lanes > 1})
	errs := produceAll(q, o, each)
	total := each * uint64(lanes)
	over := func() bool { return r.count.Load() >= total }
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			rnd := newPace(9)
			for !over() {
				if _, why := r.sread(1+rnd.IntN(2*laneSlots), Wait{Stop: over}); why == gotSignal {
					t.Error("a signal that nobody sent")
				}
				if over() {
					r.Kick()
				}
			}
		})
	}
	wg.Wait()
	for range lanes {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if r.broken != nil || r.count.Load() != total || r.Known() != lanes {
		t.Fatalf("%v; %d entries of %d, %d lanes of %d", r.broken, r.count.Load(), total, r.Known(),
			lanes)
	}
	if o == ring.SeqCst && r.Barriers() != 0 {
		t.Errorf("the reader paid %d times although producers do", r.Barriers())
	}
	// A reader that goes to sleep again before anybody has marked a lane owes nothing.
	if o == ring.Release && r.Barriers() < r.cooled {
		t.Errorf("the reader parked hot lanes %d times and paid %d times", r.cooled, r.Barriers())
	}
}

// While the reader is awake a producer does nothing but look at one word.
func TestNoWakeWhileAwake(t *testing.T) {
	for _, o := range orders {
		q := heapQueue(t, 2)
		r := newReader(q, readerOptions{order: o})
		w := q.writer(1, o)
		w.put(1)
		if w.Wakes() != 0 || q.hints.ready[0].Load() != 2 {
			t.Fatal("a parked lane is not marked, or its mark wakes although nobody sleeps")
		}
		for range 1000 {
			if r.read(laneSlots) == 0 {
				t.Fatal("an entry is missing")
			}
			w.put(1)
			if w.Published(w.prod.Tail(), 0) != 0 {
				t.Fatal("the lane of a reader that is awake is parked")
			}
		}
		if w.Wakes() != 0 || q.hints.epoch.Load() != 0 || q.hints.ready[0].Load() != 0 {
			t.Fatalf("wakes %d, epoch %d, ready %#x", w.Wakes(), q.hints.epoch.Load(),
				q.hints.ready[0].Load())
		}
	}
}

// One arming is rung once, however much is published before the reader runs.
func TestOneWakePerArming(t *testing.T) {
	q := heapQueue(t, 2)
	r := newReader(q, readerOptions{})
	a, b := q.writer(0, ring.SeqCst), q.writer(1, ring.SeqCst)
	stop := once(func() bool {
		for range 5 {
			a.put(1)
			b.put(1)
		}
		return false
	})
	whileArmed := func() bool { return r.direct > 0 && stop() }
	if n, why := r.sread(laneSlots, Wait{Stop: whileArmed}); n != 10 {
		t.Fatal(n, why)
	}
	if got := a.Wakes() + b.Wakes(); got != 1 {
		t.Fatalf("%d wakes for one arming", got)
	}
	if q.arm.Word.Load()&armFlags != 0 {
		t.Fatal("still armed")
	}
}

// A lane that attaches while the reader sleeps is seen before its first entry.
func TestAttachRings(t *testing.T) {
	q := heapQueue(t, 3)
	r := newReader(q, readerOptions{lazy: true})
	q.arm.Word.Store(armDirect | armThr | 9)
	q.row(2).Index.Store(1 << 60)
	w := q.writer(2, ring.SeqCst)
	w.Attach()
	if q.hints.epoch.Load() != 1 || w.Wakes() != 0 {
		t.Fatal("attaching does not ring, or counts as a batch")
	}
	r.read(1)
	if r.Known() != 1 || !r.Knows(2) || r.Knows(1) {
		t.Fatalf("%d lanes are known", r.Known())
	}
}

// Two sleep and one gives up: the other is still to be woken.
func TestLeavingDoesNotMuteTheOthers(t *testing.T) {
	q := heapQueue(t, 1)
	watchdog(t, q.String)
	r := newReader(q, readerOptions{shared: true})
	w := q.writer(0, ring.SeqCst)
	done := make(chan int)
	go func() {
		n, _ := r.sread(1, Wait{})
		done <- n
	}()
	for r.Sleeps() == 0 {
		time.Sleep(time.Millisecond)
	}
	if n, why := r.sread(1, Wait{DeadlineNs: spin.Now() + 1e6}); n != 0 || why != gotNothing {
		t.Fatal(n, why)
	}
	w.put(1)
	if n := <-done; n != 1 || w.Wakes() != 1 {
		t.Fatal(n, w.Wakes())
	}
}

// What another goroutine took from the shared bits, between this one's look and its sleep, keeps
// this one awake.
func TestSecondLookSeesWhatOthersTook(t *testing.T) {
	q := heapQueue(t, 1)
	watchdog(t, q.String)
	r := newReader(q, readerOptions{shared: true})
	if more, err := r.Park(); more || err != nil {
		t.Fatal(more, err)
	}
	q.writer(0, ring.SeqCst).put(1)
	r.Lock()
	r.Take()
	r.Unlock()
	r.Sleep(Wait{})
	if r.Sleeps() != 0 {
		t.Fatal("it slept")
	}
}
