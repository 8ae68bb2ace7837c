package wake

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/spin"
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

// noWait has a set or channel look once.
var noWait = Wait{DeadlineNs: -1}

// tally is a member that is no queue: a count, a checkpoint, and a flag that its adders look at.
type tally struct {
	n, seen atomic.Int64
	joined  atomic.Bool
	looks   atomic.Int64
	err     error
	ring    DomainRinger
}

func (m *tally) Look() (more, signaled bool, err error) {
	m.looks.Add(1)
	return m.n.Load() != m.seen.Load(), false, m.err
}

func (m *tally) Join(on bool) { m.joined.Store(on) }

func (m *tally) add() {
	m.n.Add(1)
	if m.joined.Load() {
		m.ring.Ring()
	}
}

func (m *tally) read() { m.seen.Store(m.n.Load()) }

func tallies(t testing.TB, n int) (*domainQueues, []*tally) {
	t.Helper()
	d := &domainQueues{arm: new(Arm)}
	d.hints = must(MapDomain(words8(int(DomainBytes(n))), n))
	d.Domain = NewDomain(d.arm, d.hints, n)
	ms := make([]*tally, n)
	for bit := range ms {
		ms[bit] = &tally{ring: DomainRinger{Arm: d.arm, Hints: d.hints, Bit: bit}}
	}
	return d, ms
}

func wantReady(t *testing.T, got []int, err error, want ...int) {
	t.Helper()
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("ready is %v, want %v; %v", got, want, err)
	}
}

// What does not fit into dst comes first the next time, and nothing is lost by that.
func TestPollTakesTurns(t *testing.T) {
	d, ms := tallies(t, 200)
	s := d.NewSet()
	for bit, m := range ms {
		s.Add(bit, m)
	}
	if s.Len() != 200 {
		t.Errorf("%d members", s.Len())
	}
	two := make([]int, 0, 2)
	got, err := s.Wait(two, noWait)
	wantReady(t, got, err)
	for _, bit := range []int{3, 64, 65, 130, 199} {
		ms[bit].add()
	}
	for _, want := range [][]int{{3, 64}, {65, 130}, {199, 3}, {64, 65}, {130, 199}} {
		got, err = s.Wait(two, noWait)
		wantReady(t, got, err, want...)
	}
	ms[64].read()
	ms[3].read()
	got, err = s.Wait(two, Wait{})
	wantReady(t, got, err, 65, 130)
	got, err = s.Wait(nil, noWait)
	wantReady(t, got, err, 199, 65, 130)
	got, err = s.Wait([]int{7}, noWait)
	wantReady(t, got, err, 7, 199, 65, 130)
	for _, m := range ms {
		m.read()
	}
	got, err = s.Wait(two, noWait)
	wantReady(t, got, err)
	before := ms[5].looks.Load()
	got, err = s.Wait(two, noWait)
	wantReady(t, got, err)
	if ms[5].looks.Load() != before {
		t.Error("a member that nobody marked is looked at")
	}
	s.ConsiderAll()
	if got, err = s.Wait(two, noWait); ms[5].looks.Load() != before+1 {
		t.Error("a full look leaves a member out")
	}
	wantReady(t, got, err)
}

// A member that fails does not hide the others, nor they it.
func TestMemberErrors(t *testing.T) {
	d, ms := tallies(t, 3)
	s := d.NewSet()
	for bit, m := range ms {
		s.Add(bit, m)
	}
	broken := errors.New("broken")
	ms[1].err = broken
	ms[0].add()
	got, err := s.Wait(nil, noWait)
	wantReady(t, got, err, 0)
	if got, err = s.Wait(nil, noWait); !errors.Is(err, broken) || len(got) > 0 {
		t.Error(got, err)
	}
	got, err = s.Wait(nil, noWait)
	wantReady(t, got, err, 0)
	ms[1].err = nil
	ms[0].read()
	got, err = s.Wait(nil, noWait)
	wantReady(t, got, err)
}

// Two sets share a member: each finds it, and its flag stays until both have lost it. A set that is
// closed leaves nothing behind.
func TestSharedMembers(t *testing.T) {
	d, ms := tallies(t, 2)
	a, b := d.NewSet(), d.NewSet()
	for range 2 { // adding twice is adding once
		a.Add(0, ms[0])
	}
	b.Add(0, ms[0])
	a.Add(1, ms[1])
	ms[0].add()
	for _, s := range []*Set{a, b} {
		got, err := s.Wait(nil, noWait)
		wantReady(t, got, err, 0)
	}
	b.Delete(0)
	b.Delete(0)
	b.Delete(1)
	if !ms[0].joined.Load() || a.Len() != 2 || b.Len() != 0 {
		t.Error("a member of one set left with the other")
	}
	a.Close()
	a.Close()
	if ms[0].joined.Load() || ms[1].joined.Load() {
		t.Error("a closed set keeps its members ringing")
	}
	a.Add(0, ms[0])
	if _, err := a.Wait(nil, noWait); !errors.Is(err, os.ErrClosed) || ms[0].joined.Load() ||
		a.Len() != 0 {
		t.Error("a closed set is used:", err)
	}
	if _, err := a.Face(); !errors.Is(err, os.ErrClosed) {
		t.Error("a closed set has a descriptor:", err)
	}
	if n := len(d.watchers); n != 1 {
		t.Errorf("%d sets are left of 1", n)
	}
}

// Whoever closes a set, or a channel, gets those out who sleep on it.
func TestCloseWakes(t *testing.T) {
	d, _ := tallies(t, 1)
	watchdog(t, d.String)
	s, c := d.NewSet(), d.NewChannel()
	done := make(chan error)
	go func() {
		_, err := s.Wait(nil, Wait{})
		done <- err
	}()
	go func() {
		_, _, err := c.Get(Wait{})
		done <- err
	}()
	d.asleep(t, 2)
	s.Close()
	c.Close()
	for range 2 {
		if err := <-done; !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	}
}

// A producer that stopped between its publish and its mark is found at the end of a slice, by a set
// and by a channel.
func TestSlicesLookEverywhere(t *testing.T) {
	d, ms := tallies(t, 70)
	watchdog(t, d.String)
	s := d.NewSet()
	for bit, m := range ms {
		s.Add(bit, m)
	}
	if got, err := s.Wait(nil, noWait); len(got) > 0 || err != nil {
		t.Fatal(got, err)
	}
	ms[69].n.Add(1)
	got, err := s.Wait(nil, Wait{DeadlineNs: 1})
	wantReady(t, got, err)
	got, err = s.Wait(nil, Wait{SliceNs: 1e6})
	wantReady(t, got, err, 69)

	q := newDomain(t, 1, 1, readerOptions{})
	c := q.NewChannel()
	c.Add(0, q.r[0].Bell)
	shmtest.Must(t, c.Arm(0, NotifyAny))
	q.q[0].writer(0, ring.SeqCst).publish(1)
	mark(q.q[0].hints.ready, 0)
	if e, ok, err := c.Get(Wait{SliceNs: 1e6}); !ok || err != nil || e.Mode != NotifyAny {
		t.Error(e, ok, err)
	}
}

// A producer asks for its hold on the domain when the reader first wants that, asks again when it
// got none, and again when the reader is another one.
func TestDomainIsAskedFor(t *testing.T) {
	d := newDomain(t, 1, 1, readerOptions{gen: 7})
	var asked []uint16
	var hold *DomainRinger
	w := d.q[0].writer(0, ring.SeqCst, func(c *RingerConfig) {
		c.Domain = func(gen uint16) *DomainRinger { asked = append(asked, gen); return hold }
	})
	w.put(1)
	s := d.NewSet()
	s.Add(0, d.r[0].Bell)
	if len(asked) != 0 {
		t.Error("asked although no set has the queue")
	}
	step := func(ready bool, want ...uint16) {
		t.Helper()
		d.r[0].read(laneSlots)
		s.ConsiderAll() // where producers cannot reach the domain, only that helps
		if got, err := s.Wait(nil, noWait); len(got) > 0 || err != nil {
			t.Error(got, err)
		}
		w.put(1)
		if got, err := s.Wait(nil, noWait); ready != (len(got) == 1) || err != nil {
			t.Error(got, err)
		}
		if !slices.Equal(asked, want) {
			t.Errorf("asked for %v, want %v", asked, want)
		}
	}
	step(false, 7)
	hold = &DomainRinger{Arm: d.arm, Hints: d.hints}
	step(true, 7, 7)
	step(true, 7, 7)
	d.r[0].gen = 8 << armGenShift
	d.r[0].alter(0, 0)
	step(true, 7, 7, 8)
}

func TestNoAllocationsOfSetsAndChannels(t *testing.T) {
	if shmtest.Race {
		t.Skip("the race detector allocates")
	}
	d := newDomain(t, 2, 1, readerOptions{})
	s, c := d.NewSet(), d.NewChannel()
	for bit := range 2 {
		s.Add(bit, d.r[bit].Bell)
	}
	c.Add(0, d.r[0].Bell)
	w := d.q[0].writer(0, ring.SeqCst, d.ringer(0))
	buf := make([]int, 0, 2)
	for name, f := range map[string]func(){
		"wait": func() {
			w.put(1)
			if got, _ := s.Wait(buf, Wait{}); len(got) != 1 {
				t.Error(got)
			}
			d.r[0].readAllOf()
		},
		"poll":     func() { _, _ = s.Wait(buf, noWait) },
		"deadline": func() { _, _ = s.Wait(buf, Wait{DeadlineNs: spin.Now() + 1000, SliceNs: 500}) },
		"event": func() {
			_ = c.Arm(0, NotifyAny)
			w.put(1)
			d.r[0].readAllOf()
			if _, ok, _ := c.Get(Wait{}); !ok {
				t.Error("no event")
			}
			_, _, _ = c.Get(noWait)
			c.Inject(0)
			_, _, _ = c.Get(noWait)
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
