package wake

import (
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

	channel *Channel // that a test has there
}

func newDomain(t testing.TB, queues, lanes int, o readerOptions) *domainQueues {
	t.Helper()
	d := &domainQueues{arm: new(Arm)}
	d.hints = must(MapDomain(words8(int(DomainBytes(queues))), queues))
	d.Domain = NewDomain(d.arm, d.hints, queues)
	for bit := range queues {
		d.q = append(d.q, heapQueue(t, lanes))
		d.r = append(d.r, newReader(d.q[bit], o))
		if !o.alone {
			d.r[bit].SetDomain(d.Domain, bit)
		}
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

func (d *domainQueues) count() (n uint64) {
	for _, r := range d.r {
		n += r.count.Load()
	}
	return n
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
	rounds := 300_000
	if testing.Short() || shmtest.Race {
		rounds /= 3
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
