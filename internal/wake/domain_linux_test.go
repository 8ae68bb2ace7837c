package wake

import (
	"errors"
	"fmt"
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

// descriptor makes the descriptor of a set or channel in an epoll descriptor of the user's own.
// await waits for it.
func (x *traffic) descriptor(of interface{ Face() (*Face, error) }, trigger uint32) (
	await func() error) {
	ep := userEpoll(x.t, must(of.Face()), trigger)
	return func() error {
		if !wakes(x.t, ep, 30_000) {
			return fmt.Errorf("nothing for half a minute: %v", x)
		}
		return nil
	}
}

// eachTrigger runs a test for each order and each kind of event loop.
func eachTrigger(t *testing.T, f func(t *testing.T, o ring.Order, trigger uint32)) {
	eachOrder(t, func(t *testing.T, o ring.Order) {
		for name, trigger := range triggers {
			t.Run(name, func(t *testing.T) { f(t, o, trigger) })
		}
	})
}

// An event loop over the descriptor of a set, with producers in all lanes.
func TestEventLoopOfASet(t *testing.T) {
	eachTrigger(t, func(t *testing.T, o ring.Order, trigger uint32) {
		x := newTraffic(t, 3, 2, readerOptions{order: o}, 10_000)
		s := x.newSet()
		defer s.Close()
		await := x.descriptor(s, trigger)
		x.by(func() error {
			for !x.over() {
				ready, err := s.TryWait()
				if err == nil && !ready {
					err = await()
				}
				got, waitErr := s.Wait(nil, noWait)
				if err = errors.Join(err, waitErr); err != nil {
					return err
				}
				for _, bit := range got {
					x.r[bit].read(laneSlots)
				}
			}
			return nil
		})
		x.run(nil)
	})
}

// An event loop that gets one event for each time that epoll returns, beside a goroutine that
// blocks for events of the same channel, one that waits on a set, and one that reads directly.
func TestAllWaysAtOnce(t *testing.T) {
	eachTrigger(t, func(t *testing.T, o ring.Order, trigger uint32) {
		x := newTraffic(t, 2, 2, readerOptions{order: o, shared: true}, 8_000)
		x.newChannel()
		await := x.descriptor(x.channel, trigger)
		x.get(func() (ChannelEvent, bool, error) {
			if err := await(); err != nil {
				return ChannelEvent{}, false, err
			}
			return x.channel.Get(noWait)
		})
		x.get(x.block)
		s := x.newSet()
		defer s.Close()
		x.wait(s, 3)
		x.direct(0, 3)
		x.run(nil)
		if _, _, err := x.channel.Get(noWait); err == nil || errors.Is(err, ErrWaiting) {
			t.Error("a closed channel has events: ", err)
		}
	})
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
	shmtest.Must(t, <-done)
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
