package wake

import (
	"slices"
	"testing"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

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
