package wake

import (
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
)

var triggers = map[string]uint32{"level": 0, "edge": unix.EPOLLET}

// waitIdle arms a set's descriptor with nothing to read.
func waitIdle(t *testing.T, s *Set) {
	t.Helper()
	if ready, err := s.TryWait(); ready || err != nil {
		t.Fatal("trywait: ", ready, err)
	}
}

// The descriptor of a set, step by step: readable after something came, from whatever side, until
// the next trywait that finds nothing.
func TestSetDescriptor(t *testing.T) {
	for name, trigger := range triggers {
		t.Run(name, func(t *testing.T) {
			d := newDomain(t, 3, 1, readerOptions{shared: true})
			watchdog(t, d.String)
			s, other := d.NewSet(), d.NewSet()
			defer s.Close()
			face := must(s.Face())
			if again, err := s.Face(); again != face || err != nil {
				t.Error("a second descriptor", err)
			}
			ep := userEpoll(t, face, trigger)
			for bit := range 2 {
				s.Add(bit, d.r[bit].Bell)
				other.Add(bit, d.r[bit].Bell)
			}
			if ready, err := s.TryWait(); ready || err != nil {
				t.Error(ready, err)
			}
			w := d.q[1].writer(0, ring.SeqCst, d.ringer(1))
			for name, come := range map[string]func(){
				"published": func() { w.put(1) },
				"signal":    func() { d.r[0].Signal() },
				"death": func() {
					w.publish(1)
					d.r[1].Mark(0)
				},
				"taken by another set": func() {
					w.put(1)
					if _, err := other.Wait(nil, noWait); err != nil {
						t.Error(err)
					}
				},
			} {
				waitIdle(t, s)
				if wakes(t, ep, 0) {
					t.Error(name, ": readable although nothing came")
				}
				come()
				if !wakes(t, ep, 10_000) {
					t.Fatal(name, ": does not wake epoll")
				}
				if trigger == 0 && !wakes(t, ep, 0) {
					t.Error(name, ": not level-triggered")
				}
				if ready, err := s.TryWait(); !ready || err != nil {
					t.Error(name, ready, err)
				}
				d.r[0].TakeSignal()
				d.r[1].readAllOf()
			}
			waitIdle(t, s)
			s.Add(2, d.r[2].Bell) // a new member is to be looked at
			if !wakes(t, ep, 10_000) {
				t.Error("a new member does not wake epoll")
			}
		})
	}
}

// The keeper runs while there is a descriptor, and not beyond.
func TestKeeperEnds(t *testing.T) {
	d := newDomain(t, 1, 1, readerOptions{})
	watchdog(t, d.String)
	for range 20 {
		s, c := d.NewSet(), d.NewChannel()
		var wg sync.WaitGroup
		for _, f := range []func() (*Face, error){s.Face, c.Face, s.Face, c.Face} {
			wg.Go(func() {
				if _, err := f(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		d.asleep(t, 1)
		k := d.keeper
		s.Close()
		if k.stop.Load() {
			t.Error("the keeper left before the last descriptor")
		}
		c.Close()
		<-k.done
		if d.keeper != nil || d.nw != 0 || d.arm.Word.Load() != 0 {
			t.Error("the keeper left something behind: ", d)
		}
	}
}

// An event loop over the descriptor of a set, with producers in all lanes; and one that also reads
// directly, in a second goroutine.
func TestEventLoopOfASet(t *testing.T) {
	each := uint64(10_000)
	if testing.Short() || shmtest.Race {
		each /= 5
	}
	for _, o := range orders {
		for name, trigger := range triggers {
			t.Run(orderName(o)+"/"+name, func(t *testing.T) {
				registered(t, o)
				const queues = 3
				d := newDomain(t, queues, 2, readerOptions{order: o})
				watchdog(t, d.String)
				s := d.NewSet()
				defer s.Close()
				ep := userEpoll(t, must(s.Face()), trigger)
				for bit := range queues {
					s.Add(bit, d.r[bit].Bell)
				}
				errs := d.produce(o, each)
				for total := each * queues * 2; d.count() < total; {
					ready, err := s.TryWait()
					shmtest.Must(t, err)
					if !ready && !wakes(t, ep, 30_000) {
						t.Fatal("nothing for half a minute: ", d)
					}
					got, err := s.Wait(nil, noWait)
					shmtest.Must(t, err)
					for _, bit := range got {
						d.r[bit].read(laneSlots)
					}
				}
				for range queues * 2 {
					if err := <-errs; err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// The descriptor of a channel needs no trywait: it stays readable while an event is left, says so
// once more for those who wait for edges, and is not readable after the last.
func TestChannelDescriptor(t *testing.T) {
	for name, trigger := range triggers {
		t.Run(name, func(t *testing.T) { channelDescriptor(t, trigger) })
	}
}

func channelDescriptor(t *testing.T, trigger uint32) {
	d := newDomain(t, 3, 1, readerOptions{})
	watchdog(t, d.String)
	c := d.NewChannel()
	defer c.Close()
	for bit := range 3 {
		c.Add(bit, d.r[bit].Bell)
	}
	c.Inject(2) // before there is a descriptor
	ep := userEpoll(t, must(c.Face()), trigger)
	get := func(want bool) {
		t.Helper()
		if _, ok, err := c.Get(noWait); ok != want || err != nil {
			t.Error(ok, err)
		}
	}
	readable := func(want bool) {
		t.Helper()
		timeout := 0
		if want {
			timeout = 10_000
		}
		if wakes(t, ep, timeout) != want {
			t.Fatalf("readable is not %v", want)
		}
	}
	readable(true)
	get(true)
	readable(false)
	for range 3 {
		for bit := range 2 {
			shmtest.Must(t, c.Arm(bit, NotifyAny))
			d.r[bit].readAllOf()
		}
		readable(false)
		for bit := range 2 {
			d.q[bit].writer(0, ring.SeqCst, d.ringer(bit)).put(1)
		}
		readable(true)
		d.asleep(t, 1)
		get(true)
		readable(true)
		get(true)
		readable(false)
		get(false)
	}
	shmtest.Must(t, c.Arm(0, NotifySolicited))
	d.r[0].readAllOf()
	w := d.q[0].writer(0, ring.SeqCst, d.ringer(0))
	w.put(1)
	readable(false)
	w.solicit(d.q[0], 0)
	readable(true)
	if err := c.Arm(0, NotifyAny); err != nil { // the event stays
		t.Fatal(err)
	}
	d.r[0].readAllOf()
	w.put(1)
	readable(trigger == 0) // an edge is followed by a get
	get(true)
	readable(true)
	get(true)
	readable(false)
}

// An event loop that gets one event for each time that epoll returns, beside a goroutine that
// blocks for events of the same channel, one that waits on a set, and one that reads directly.
func TestAllWaysAtOnce(t *testing.T) {
	each := uint64(8_000)
	if testing.Short() || shmtest.Race {
		each /= 5
	}
	for _, o := range orders {
		for name, trigger := range triggers {
			t.Run(orderName(o)+"/"+name, func(t *testing.T) {
				registered(t, o)
				allWays(t, o, trigger, each)
			})
		}
	}
}

// getEvents handles what get returns until all is over. An error ends it too.
func getEvents(t *testing.T, over func() bool, get func() (ChannelEvent, bool, error),
	handle func(ChannelEvent)) {
	for !over() {
		e, ok, err := get()
		if err != nil {
			t.Error(err)
			return
		}
		if ok {
			handle(e)
		}
	}
}

// rearm handles an event: it arms the queue and then reads it.
func rearm(t *testing.T, d *domainQueues, c *Channel, e ChannelEvent) {
	if e.Dummy {
		return
	}
	if err := c.Arm(e.Bit, NotifyAny); err != nil {
		t.Error(err)
	}
	d.r[e.Bit].readAllOf()
}

func allWays(t *testing.T, o ring.Order, trigger uint32, each uint64) {
	const queues = 2
	d := newDomain(t, queues, 2, readerOptions{order: o, shared: true})
	watchdog(t, d.String)
	total := each * queues * 2
	over := func() bool { return d.count() >= total }
	c, s := d.NewChannel(), d.NewSet()
	for bit := range queues {
		c.Add(bit, d.r[bit].Bell)
		s.Add(bit, d.r[bit].Bell)
		shmtest.Must(t, c.Arm(bit, NotifyAny))
	}
	ep := userEpoll(t, must(c.Face()), trigger)
	handle := func(e ChannelEvent) { rearm(t, d, c, e) }
	finish := func() { // everybody who sleeps looks once more
		d.Kick()
		d.r[0].Kick()
		c.Inject(0)
		c.Inject(1)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		getEvents(t, over, func() (ChannelEvent, bool, error) {
			if !wakes(t, ep, 30_000) {
				t.Error("nothing for half a minute: ", d)
				return ChannelEvent{}, false, os.ErrDeadlineExceeded
			}
			return c.Get(noWait)
		}, handle)
		finish()
	})
	wg.Go(func() {
		getEvents(t, over, func() (ChannelEvent, bool, error) {
			return c.Get(Wait{Stop: over})
		}, handle)
		finish()
	})
	wg.Go(func() {
		if err := d.drainSet(s, over, 3); err != nil {
			t.Error(err)
		}
		finish()
	})
	wg.Go(func() {
		for !over() {
			d.r[0].sread(3, Wait{Stop: over})
		}
		finish()
	})
	errs := d.produce(o, each)
	for range queues * 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	c.Close()
	s.Close()
	if d.count() != total || d.r[0].broken != nil || d.r[1].broken != nil {
		t.Errorf("%d entries of %d; %v %v", d.count(), total, d.r[0].broken, d.r[1].broken)
	}
	if _, _, err := c.Get(noWait); err == nil || errors.Is(err, ErrWaiting) {
		t.Error("a closed channel has events: ", err)
	}
}

// hook is a member that does something while it is looked at.
type hook struct{ look func() }

func (h *hook) Look() (more, signaled bool, err error) { h.look(); return false, false, nil }
func (h *hook) Join(bool)                              {}

// What comes for a member that was looked at already is found by trywait's second look.
func TestTryWaitLooksAgain(t *testing.T) {
	d, _ := tallies(t, 2)
	s := d.NewSet()
	defer s.Close()
	once := true
	s.Add(0, &hook{func() {}})
	s.Add(1, &hook{func() {
		if once {
			d.Consider(0)
		}
		once = false
	}})
	if ready, err := s.TryWait(); !ready || err != nil {
		t.Error("says that nothing came: ", ready, err)
	}
	waitIdle(t, s)
}

// What comes between the last event and the reset of the channel's descriptor shows in it.
func TestChannelLooksAgain(t *testing.T) {
	const settle = 20 * time.Millisecond
	d := newDomain(t, 1, 1, readerOptions{})
	watchdog(t, d.String)
	c := d.NewChannel()
	defer c.Close()
	c.Add(0, d.r[0].Bell)
	ep := userEpoll(t, must(c.Face()), unix.EPOLLET)
	c.Inject(0)
	if !wakes(t, ep, 10_000) {
		t.Fatal("not readable")
	}
	c.lowers.Lock() // the get takes its event, and comes as far as the reset
	done := make(chan error)
	go func() {
		_, _, err := c.Get(noWait)
		done <- err
	}()
	time.Sleep(settle)
	c.Inject(0)
	c.lowers.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !wakes(t, ep, 10_000) {
		t.Error("the descriptor forgets an event")
	}
}

// A set sleeps only if nothing is marked for its members, the keeper only if nothing is for those
// who have a descriptor.
func TestDomainsSecondLook(t *testing.T) {
	d, ms := tallies(t, 3)
	s, c, plain := d.NewSet(), d.NewChannel(), d.NewSet()
	for bit, m := range ms {
		plain.Add(bit, m)
	}
	s.Add(0, ms[0])
	for _, x := range []*Set{s, plain} {
		if got, err := x.Wait(nil, noWait); len(got) > 0 || err != nil {
			t.Fatal(got, err)
		}
	}
	face := newFace(t, -1)
	s.desc, c.desc = face, face // without a keeper, which would take the marks
	c.mask.set(2)
	for bit, want := range []bool{true, false, true} {
		ms[bit].add()
		ms[bit].read() // what counts are marks
		if d.busy(nil) != want {
			t.Errorf("bit %d: the keeper's second look says %v", bit, !want)
		}
		if !d.busy(&plain.watcher) || d.busy(&s.watcher) != (bit == 0) {
			t.Errorf("bit %d: a set's second look is wrong", bit)
		}
		d.take()
		for _, x := range []*Set{s, plain} {
			if _, err := x.Wait(nil, noWait); err != nil {
				t.Error(err)
			}
		}
		d.Consider(bit) // on the list, and no mark
		if !d.busy(&plain.watcher) {
			t.Errorf("bit %d: a set's second look overlooks its list", bit)
		}
		if _, err := plain.Wait(nil, noWait); err != nil {
			t.Error(err)
		}
		if _, err := s.Wait(nil, noWait); err != nil {
			t.Error(err)
		}
	}
	s.desc, c.desc = nil, nil
}

// A lane that is marked while others are looked at is found when the descriptor is armed.
func TestTryWaitSecondLook(t *testing.T) {
	face := must(NewFace(-1))
	defer face.Close()
	q := heapQueue(t, 2)
	r := newReader(q, readerOptions{face: face})
	if more, err := r.Park(); more || err != nil {
		t.Fatal(more, err)
	}
	r.Consider(0)
	other := q.writer(1, ring.SeqCst)
	r.level = func(int) {
		r.level = nil
		other.put(1) // nobody is armed yet
	}
	if ready, _, err := r.TryWait(); !ready || err != nil {
		t.Errorf("the user would block on an entry: %v, %v", ready, err)
	}
}
