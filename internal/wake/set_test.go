package wake

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
)

// domainQueues is a process that reads several queues through one domain bell.
type domainQueues struct {
	*Domain
	arm   *Arm
	hints *Hints
	q     []*queue
	r     []*reader
	lanes []*packedLane // of a benchmark, in place of q
}

func newDomain(t testing.TB, queues, lanes int, o readerOptions) *domainQueues {
	t.Helper()
	d := &domainQueues{arm: new(Arm)}
	d.hints = must(MapDomain(words8(int(DomainBytes(queues))), queues))
	d.Domain = NewDomain(d.arm, d.hints, queues)
	for bit := range queues {
		d.q = append(d.q, heapQueue(t, lanes))
		d.r = append(d.r, newReader(d.q[bit], o))
		d.r[bit].SetDomain(d.Domain, bit)
	}
	return d
}

// ringer lets a producer of queue bit ring the domain.
func (d *domainQueues) ringer(bit int) func(*RingerConfig) {
	hold := &DomainRinger{Arm: d.arm, Hints: d.hints, Bit: bit}
	return func(c *RingerConfig) {
		c.Domain = func(uint16) *DomainRinger { return hold }
	}
}

func (d *domainQueues) String() string {
	s := fmt.Sprintf("domain armed %d rung %d epoch %d nw %d ready %#x", d.arm.Word.Load(),
		d.hints.rung.Load(), d.hints.epoch.Load(), d.nw, &d.hints.ready[0])
	for bit, q := range d.q {
		if q.tail(0).Load() != q.head(0).Load() {
			s += fmt.Sprintf("\nqueue %d: %v", bit, q)
		}
	}
	return s
}

// produce starts a producer for each lane of each queue.
func (d *domainQueues) produce(o ring.Order, each uint64) chan error {
	errs := make(chan error, len(d.q)*d.q[0].lanes)
	for bit, q := range d.q {
		for lane := range q.lanes {
			w := q.writer(lane, o, d.ringer(bit))
			go func() { errs <- w.run(each, newPace(uint64(bit*64+lane))) }()
		}
	}
	return errs
}

// drainSet waits on a set and reads what is ready until over says so.
func (d *domainQueues) drainSet(s *Set, over func() bool, limit int) error {
	var buf [8]int
	rnd := newPace(3)
	for !over() {
		ready, err := s.Wait(buf[:0], Wait{Stop: over})
		if err != nil {
			return err
		}
		for _, bit := range ready {
			r := d.r[bit]
			r.Lock()
			r.read(1 + rnd.IntN(limit))
			err := r.broken
			r.Unlock()
			if err != nil {
				return err
			}
		}
		if over() {
			d.Kick()
		}
	}
	return nil
}

func (d *domainQueues) count() (n uint64) {
	for _, r := range d.r {
		n += r.count.Load()
	}
	return n
}

// Sets over all queues, more queues than one word has bits; one waiter, and three on sets whose
// members overlap. Reading less than what is there must leave the queue ready.
func TestSets(t *testing.T) {
	total := uint64(60_000)
	if testing.Short() || shmtest.Race {
		total /= 6
	}
	for _, o := range orders {
		for _, queues := range []int{1, 2, 70} {
			for _, waiters := range []int{1, 3} {
				t.Run(fmt.Sprintf("%v/queues=%d/waiters=%d", o, queues, waiters), func(t *testing.T) {
					registered(t, o)
					sets(t, o, queues, waiters, total/uint64(queues)/2)
				})
			}
		}
	}
}

func sets(t *testing.T, o ring.Order, queues, waiters int, each uint64) {
	d := newDomain(t, queues, 2, readerOptions{order: o, shared: waiters > 1})
	watchdog(t, d.String)
	total := each * uint64(2*queues)
	over := func() bool { return d.count() >= total }
	var wg sync.WaitGroup
	for range waiters {
		s := d.NewSet()
		for bit := range queues {
			s.Add(bit, d.r[bit].Bell)
		}
		wg.Go(func() {
			if err := d.drainSet(s, over, 2*laneSlots); err != nil {
				t.Error(err)
			}
		})
	}
	errs := d.produce(o, each)
	for range 2 * queues {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if d.count() != total {
		t.Fatalf("%d entries of %d", d.count(), total)
	}
	if d.arm.Word.Load() != 0 {
		t.Error("the domain is armed although nobody waits")
	}
}

// A direct reader and a set on the same queue: either may take an entry, none is lost.
func TestSetAndDirectReadOnOneQueue(t *testing.T) {
	each := uint64(20_000)
	if testing.Short() || shmtest.Race {
		each /= 5
	}
	for _, o := range orders {
		t.Run(orderName(o), func(t *testing.T) {
			registered(t, o)
			d := newDomain(t, 2, 2, readerOptions{order: o, shared: true})
			watchdog(t, d.String)
			total := each * 4
			over := func() bool { return d.count() >= total }
			s := d.NewSet()
			s.Add(0, d.r[0].Bell)
			s.Add(1, d.r[1].Bell)
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := d.drainSet(s, over, laneSlots); err != nil {
					t.Error(err)
				}
				d.r[0].Kick()
			})
			wg.Go(func() {
				for !over() {
					d.r[0].sread(laneSlots, Wait{Stop: over})
				}
				d.Kick()
			})
			errs := d.produce(o, each)
			for range 4 {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			wg.Wait()
			if d.count() != total || d.r[0].broken != nil {
				t.Fatalf("%d entries of %d; %v", d.count(), total, d.r[0].broken)
			}
		})
	}
}

// Queues join and leave two sets, from two goroutines, while a waiter sleeps and producers run.
// At the end every queue is a member again, and everything arrives.
func TestMembersComeAndGo(t *testing.T) {
	const queues = 3
	each := uint64(15_000)
	if testing.Short() || shmtest.Race {
		each /= 5
	}
	d := newDomain(t, queues, 1, readerOptions{shared: true})
	watchdog(t, d.String)
	total := each * queues
	over := func() bool { return d.count() >= total }
	a, b := d.NewSet(), d.NewSet()
	var stop atomic.Bool
	var wg, changes sync.WaitGroup
	for _, s := range []*Set{a, b} {
		wg.Go(func() {
			if err := d.drainSet(s, over, laneSlots); err != nil {
				t.Error(err)
			}
		})
		changes.Go(func() {
			rnd := newPace(1)
			for !stop.Load() {
				bit := rnd.IntN(queues)
				s.Add(bit, d.r[bit].Bell)
				rnd.pause()
				s.Delete(bit)
				time.Sleep(time.Duration(rnd.IntN(100)) * time.Microsecond)
			}
			if s == a {
				for bit := range queues {
					s.Add(bit, d.r[bit].Bell)
				}
			}
		})
	}
	errs := d.produce(ring.SeqCst, each)
	for d.count() < total/2 {
		time.Sleep(time.Millisecond)
	}
	stop.Store(true)
	changes.Wait()
	for range queues {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	for bit := range queues {
		if d.r[bit].armed()&armDom == 0 {
			t.Errorf("queue %d is a member and its flag says that it is not", bit)
		}
		a.Delete(bit)
		if d.r[bit].armed() != 0 {
			t.Errorf("queue %d is no member, its flags are %#x", bit, d.r[bit].armed())
		}
	}
}

// The steps of a wait, one by one: what is ready, that it stays ready, deadline and Stop.
func TestSetWait(t *testing.T) {
	d := newDomain(t, 70, 1, readerOptions{})
	s := d.NewSet()
	past := Wait{DeadlineNs: 1}
	for _, bit := range []int{0, 5, 69} {
		s.Add(bit, d.r[bit].Bell)
	}
	look := func(want ...int) {
		t.Helper()
		got, err := s.Wait([]int{-1}, past)
		slices.Sort(got) // members take turns in coming first
		if err != nil || !slices.Equal(got, append([]int{-1}, want...)) {
			t.Errorf("ready is %v, want %v (%v)", got, want, err)
		}
	}
	look()
	for _, bit := range []int{5, 6, 69} { // 6 is no member
		d.q[bit].writer(0, ring.SeqCst, d.ringer(bit)).put(2)
	}
	look(5, 69)
	look(5, 69)
	d.r[5].read(1)
	look(5, 69)
	d.r[5].read(1)
	look(69)
	s.Add(6, d.r[6].Bell)
	look(6, 69)
	s.Delete(69)
	look(6)
	s.Add(69, d.r[69].Bell)
	look(6, 69)
	s.Delete(6)
	s.Delete(69)
	look()
	asked := 0
	stop := func() bool { asked++; return asked > 1 }
	if got, err := s.Wait(nil, Wait{Stop: stop}); len(got) != 0 || err != nil {
		t.Error(got, err)
	}
}

// Whoever is told to stop while it sleeps on a set is woken by Kick.
func TestDomainKick(t *testing.T) {
	d := newDomain(t, 1, 1, readerOptions{})
	watchdog(t, d.String)
	s := d.NewSet()
	s.Add(0, d.r[0].Bell)
	var stop atomic.Bool
	asked := make(chan struct{}, 100)
	done := make(chan error)
	go func() {
		_, err := s.Wait(nil, Wait{Stop: func() bool {
			asked <- struct{}{}
			return stop.Load()
		}})
		done <- err
	}()
	<-asked
	<-asked // the second is the one after which it sleeps
	stop.Store(true)
	d.Kick()
	shmtest.Must(t, <-done)
}

// slowLeaver is a member that takes its time to clear its flag.
type slowLeaver struct {
	tally
	leave chan struct{}
}

func (m *slowLeaver) Join(on bool) {
	if !on {
		<-m.leave
	}
	m.tally.Join(on)
}

// One set takes a member on while another gives it up: the flag that producers look at must not be
// taken away behind the new member's back.
func TestAddBesideDelete(t *testing.T) {
	const settle = 20 * time.Millisecond
	d, _ := tallies(t, 1)
	a, b := d.NewSet(), d.NewSet()
	m := &slowLeaver{leave: make(chan struct{})}
	a.Add(0, m)
	var wg sync.WaitGroup
	wg.Go(func() { a.Delete(0) })
	time.Sleep(settle)
	wg.Go(func() { b.Add(0, m) })
	time.Sleep(settle)
	close(m.leave)
	wg.Wait()
	if !m.joined.Load() {
		t.Fatal("producers do not ring for the set that has the member")
	}
}

// A set takes on and gives up a queue that is not shared, from another goroutine, while the queue's
// own goroutine arms and disarms it: neither undoes what the other wrote.
func TestAddBesideARead(t *testing.T) {
	rounds := 1_000_000
	if testing.Short() || shmtest.Race {
		rounds /= 10
	}
	d := newDomain(t, 1, 1, readerOptions{})
	s, r := d.NewSet(), d.r[0]
	var stop atomic.Bool
	var wg sync.WaitGroup
	begun := make(chan struct{})
	wg.Go(func() {
		close(begun)
		for !stop.Load() { // R6 and R9
			r.alter(armThr, armDirect)
			r.alter(armDirect|armThr, 0)
		}
	})
	<-begun
	for range rounds {
		s.Add(0, r.Bell)
		if r.armed()&armDom == 0 {
			t.Fatal("the flag of a member is gone")
		}
		s.Delete(0)
		if r.armed()&armDom != 0 {
			t.Fatal("the flag of one that left is back")
		}
	}
	stop.Store(true)
	wg.Wait()
	if r.armed() != 0 {
		t.Errorf("flags %#x are left", r.armed())
	}
}

// TestOneWaiterPerSet: the explorer shows that a second waiter on one set loses a wake, so it is
// refused.
func TestOneWaiterPerSet(t *testing.T) {
	arm := new(Arm)
	hints, err := MapDomain(make([]byte, DomainBytes(1)), 1)
	shmtest.Must(t, err)
	d := NewDomain(arm, hints, 1)
	s := d.NewSet()
	stop := make(chan struct{})
	done := make(chan error)
	go func() {
		_, err := s.Wait(nil, Wait{Stop: func() bool {
			select {
			case <-stop:
				return true
			default:
				return false
			}
		}})
		done <- err
	}()
	for arm.Word.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if _, err := s.Wait(nil, Wait{}); !errors.Is(err, ErrWaiting) {
		t.Errorf("second waiter: %v", err)
	}
	close(stop)
	d.Kick()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
