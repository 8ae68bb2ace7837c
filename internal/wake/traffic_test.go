package wake

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
)

// traffic is a process whose queues get entries in all their lanes, and those who read them, each
// in a way of its own: every entry comes once and in order, and nobody sleeps for ever.
type traffic struct {
	*domainQueues
	t     *testing.T
	order ring.Order
	each  uint64 // entries of a lane
	total uint64
	ways  sync.WaitGroup
	// Queues on the channel, if there is one, are armed again for each event.
	armed, events atomic.Int64
}

func newTraffic(t *testing.T, queues, lanes int, o readerOptions, each uint64) *traffic {
	t.Helper()
	registered(t, o.order)
	if testing.Short() || shmtest.Race {
		each /= 5
	}
	x := &traffic{domainQueues: newDomain(t, queues, lanes, o), t: t, order: o.order, each: each,
		total: each * uint64(queues*lanes)}
	watchdog(t, x.String)
	return x
}

func (x *traffic) over() bool { return x.count() >= x.total }

// by has a goroutine read in a way until all is read. Then everybody who sleeps looks once more.
func (x *traffic) by(way func() error) {
	x.ways.Go(func() {
		if err := way(); err != nil {
			x.t.Error(err)
		}
		x.Kick()
		for bit, r := range x.r {
			r.Kick()
			if x.channel != nil {
				x.channel.Inject(bit)
			}
		}
	})
}

// direct reads one queue.
func (x *traffic) direct(bit, limit int) {
	x.by(func() error {
		rnd := newPace(9)
		for !x.over() {
			if _, why := x.r[bit].sread(1+rnd.IntN(limit), Wait{Stop: x.over}); why == gotSignal {
				return errors.New("a signal that nobody sent")
			}
		}
		return nil
	})
}

// newSet makes a set of all queues.
func (x *traffic) newSet() *Set {
	s := x.NewSet()
	for bit, r := range x.r {
		s.Add(bit, r.Bell)
	}
	return s
}

// wait waits on a set, and reads what is ready: with a small limit less than what is there, which
// must leave the queue ready.
func (x *traffic) wait(s *Set, limit int) {
	x.by(func() error {
		rnd := newPace(3)
		for !x.over() {
			ready, err := s.Wait(nil, Wait{Stop: x.over})
			if err != nil {
				return err
			}
			for _, bit := range ready {
				r := x.r[bit]
				r.Lock()
				r.read(1 + rnd.IntN(limit))
				r.Unlock()
			}
		}
		return nil
	})
}

// newChannel makes the channel, with all queues, and arms it.
func (x *traffic) newChannel() {
	x.channel = x.NewChannel()
	for bit, r := range x.r {
		x.channel.Add(bit, r.Bell)
		shmtest.Must(x.t, x.armAgain(bit))
	}
}

func (x *traffic) armAgain(bit int) error {
	x.armed.Add(1)
	return x.channel.Arm(bit, NotifyAny)
}

// get gets events of the channel; for each it arms the queue and then reads it.
func (x *traffic) get(next func() (ChannelEvent, bool, error)) {
	x.by(func() error {
		for !x.over() {
			e, ok, err := next()
			if err != nil {
				return err
			}
			if !ok || e.Dummy {
				continue
			}
			x.events.Add(1)
			if err := x.armAgain(e.Bit); err != nil {
				return err
			}
			x.r[e.Bit].readAllOf()
		}
		return nil
	})
}

// block is how get comes by an event in a goroutine of its own.
func (x *traffic) block() (ChannelEvent, bool, error) { return x.channel.Get(Wait{Stop: x.over}) }

// run produces until all is read. Beside that it calls meanwhile, if it is not nil.
func (x *traffic) run(meanwhile func()) {
	x.t.Helper()
	errs := x.produce(x.order, x.each)
	if meanwhile != nil {
		meanwhile()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			x.t.Error(err)
		}
	}
	x.ways.Wait()
	for _, r := range x.r {
		if r.broken != nil {
			x.t.Error(r.broken)
		}
	}
	if n := x.count(); n != x.total {
		x.t.Errorf("%d entries of %d", n, x.total)
	}
	if x.channel != nil {
		if left := x.armingsLeft(); x.armed.Load()-x.events.Load() != left {
			x.t.Errorf("%d armings, %d events, %d left", x.armed.Load(), x.events.Load(), left)
		}
		x.channel.Close()
	}
}

// armingsLeft counts the armings that have no event, or one that nobody took.
func (x *traffic) armingsLeft() (left int64) {
	for {
		e, ok, err := x.channel.Get(noWait)
		if err != nil || !ok {
			break
		}
		if !e.Dummy {
			left++
		}
	}
	for _, r := range x.r {
		if notifyOf(r.armed()) != NotifyNone {
			left++
		}
	}
	return left
}

// eachOrder runs a test for each order that producers can have.
func eachOrder(t *testing.T, f func(t *testing.T, o ring.Order)) {
	for _, o := range orders {
		t.Run(orderName(o), func(t *testing.T) { f(t, o) })
	}
}

// Lanes in one and in several words of bits, known from the start or by their first mark, one
// reader and several.
func TestDirectRead(t *testing.T) {
	for _, o := range orders {
		for _, lanes := range []int{1, 3, 130} {
			for _, readers := range []int{1, 3} {
				t.Run(fmt.Sprintf("%v/lanes=%d/readers=%d", o, lanes, readers), func(t *testing.T) {
					directRead(t, o, lanes, readers)
				})
			}
		}
	}
}

func directRead(t *testing.T, o ring.Order, lanes, readers int) {
	x := newTraffic(t, 1, lanes, readerOptions{order: o, shared: readers > 1, lazy: lanes > 1,
		alone: true}, 60_000/uint64(lanes))
	for range readers {
		x.direct(0, 2*laneSlots)
	}
	x.run(nil)
	r := x.r[0]
	if r.Known() != lanes {
		t.Errorf("%d lanes of %d are known", r.Known(), lanes)
	}
	if o == ring.SeqCst && r.barriers.Load() != 0 {
		t.Errorf("the reader paid %d times although producers do", r.barriers.Load())
	}
	// A reader that goes to sleep again before anybody has marked a lane owes nothing.
	if o == ring.Release && r.barriers.Load() < r.cooled {
		t.Errorf("the reader parked hot lanes %d times and paid %d times", r.cooled, r.barriers.Load())
	}
}

// A reader that waits for many, again and again for another number.
func TestThresholdWithManyProducers(t *testing.T) {
	for _, o := range orders {
		for _, shared := range []bool{false, true} {
			for _, lanes := range []int{1, 3} {
				t.Run(fmt.Sprintf("%v/shared=%v/lanes=%d", o, shared, lanes), func(t *testing.T) {
					x := newTraffic(t, 1, lanes, readerOptions{order: o, shared: shared, alone: true},
						10_000)
					x.by(x.thresholds)
					x.run(nil)
				})
			}
		}
	}
}

func (x *traffic) thresholds() error {
	r, rnd := x.r[0], newPace(5)
	for left := x.total; left > 0; {
		want := min(left, 1+rnd.Uint64N(uint64(x.q[0].lanes*laneSlots)))
		got := r.waiting(want, Wait{})
		r.Lock()
		n := r.read(int(min(got, want)))
		r.Unlock()
		if n == 0 || r.broken != nil {
			return fmt.Errorf("a wait for %d ended with %d, and nothing can be read: %w", want, got,
				r.broken)
		}
		left -= uint64(n)
	}
	return nil
}

// Sets over all queues, more queues than one word has bits; one waiter, and three on sets whose
// members overlap.
func TestSets(t *testing.T) {
	for _, o := range orders {
		for _, queues := range []int{1, 2, 70} {
			for _, waiters := range []int{1, 3} {
				t.Run(fmt.Sprintf("%v/queues=%d/waiters=%d", o, queues, waiters), func(t *testing.T) {
					x := newTraffic(t, queues, 2, readerOptions{order: o, shared: waiters > 1},
						30_000/uint64(queues))
					for range waiters {
						x.wait(x.newSet(), 2*laneSlots)
					}
					x.run(nil)
					if x.arm.Word.Load() != 0 {
						t.Error("the domain is armed although nobody waits")
					}
				})
			}
		}
	}
}

// A direct reader and a set on the same queue: either may take an entry.
func TestSetAndDirectReadOnOneQueue(t *testing.T) {
	eachOrder(t, func(t *testing.T, o ring.Order) {
		x := newTraffic(t, 2, 2, readerOptions{order: o, shared: true}, 20_000)
		x.wait(x.newSet(), laneSlots)
		x.direct(0, laneSlots)
		x.run(nil)
	})
}

// Many goroutines get events of many queues; each event has one taker, each arming one event.
func TestChannelGetters(t *testing.T) {
	eachOrder(t, func(t *testing.T, o ring.Order) {
		x := newTraffic(t, 3, 2, readerOptions{order: o, shared: true}, 15_000)
		x.newChannel()
		for range 4 {
			x.get(x.block)
		}
		x.run(nil)
	})
}

// Queues join and leave two sets, from two goroutines, while a waiter sleeps and producers run.
// At the end every queue is a member again.
func TestMembersComeAndGo(t *testing.T) {
	const queues = 3
	x := newTraffic(t, queues, 1, readerOptions{shared: true}, 15_000)
	a, b := x.NewSet(), x.NewSet()
	var stop atomic.Bool
	var changes sync.WaitGroup
	for _, s := range []*Set{a, b} {
		x.wait(s, laneSlots)
		changes.Go(func() {
			rnd := newPace(1)
			for !stop.Load() {
				bit := rnd.IntN(queues)
				s.Add(bit, x.r[bit].Bell)
				rnd.pause()
				s.Delete(bit)
				time.Sleep(time.Duration(rnd.IntN(100)) * time.Microsecond)
			}
			if s == a {
				for bit := range queues {
					s.Add(bit, x.r[bit].Bell)
				}
			}
		})
	}
	x.run(func() {
		for x.count() < x.total/2 {
			time.Sleep(time.Millisecond)
		}
		stop.Store(true)
		changes.Wait()
	})
	for bit, r := range x.r {
		if r.armed()&armDom == 0 {
			t.Errorf("queue %d is a member and its flag says that it is not", bit)
		}
		a.Delete(bit)
		if r.armed() != 0 {
			t.Errorf("queue %d is no member, its flags are %#x", bit, r.armed())
		}
	}
}
