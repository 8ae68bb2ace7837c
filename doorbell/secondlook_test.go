package doorbell

import (
	"testing"

	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

// What happens between the look that found nothing and the arming rings nobody, for nobody is
// armed. The second look finds it: the reader does not go to sleep.
func TestSecondLook(t *testing.T) {
	for name, happens := range map[string]func(q *queue, r *reader){
		"a mark":   func(q *queue, _ *reader) { q.writer(0, ring.SeqCst).put(1) },
		"a signal": func(q *queue, _ *reader) { Signal(q.arm, q.hints, nil, nil) },
		"a mark that another goroutine takes": func(q *queue, r *reader) {
			q.writer(0, ring.SeqCst).put(1)
			r.Take()
		},
	} {
		for missing := range uint64(3) {
			q := heapQueue(t, 1)
			r := newReader(q, readerOptions{shared: true})
			r.Take()
			w := Wait{DeadlineNs: spin.Now() + 2e9, Missing: missing, Takes: r.Takes()}
			if more, err := r.Park(); more || err != nil {
				t.Fatal(more, err)
			}
			happens(q, r)
			if r.Sleep(w); r.Sleeps() != 0 {
				t.Errorf("%s, %d entries missing: slept on it", name, missing)
			}
		}
	}
}

// Whoever stops a wait says so first and kicks then: a reader that was about to sleep asks.
func TestStopIsAsked(t *testing.T) {
	r := newReader(heapQueue(t, 1), readerOptions{})
	if more, err := r.Park(); more || err != nil {
		t.Fatal(more, err)
	}
	r.Sleep(Wait{DeadlineNs: spin.Now() + 2e9, Stop: func() bool { return true }})
	if r.Sleeps() != 0 {
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
		if ready, err := s.Poll(nil); len(ready) != 0 || err != nil {
			t.Fatal(ready, err)
		}
	}
	d.q[0].writer(0, ring.SeqCst, d.ringer(0)).put(1)
	for i, s := range sets {
		if ready, err := s.Poll(nil); len(ready) != 1 || err != nil {
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
