package doorbell

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shmring/shmring/ring"
)

// solicit publishes one entry whose poster asks for an event.
func (w *writer) solicit(q *queue, bit int) {
	q.sol(bit).Store(w.prod.Tail() + 1)
	w.publish(1)
	w.Published(w.prod.Tail(), HoldsSolicited)
}

// readAllOf drains a queue as the user of a channel does after arming.
func (r *reader) readAllOf() (n int) {
	r.Lock()
	defer r.Unlock()
	for {
		k := r.read(2 * laneSlots)
		if k == 0 {
			return n
		}
		n += k
	}
}

// one fetches an event without waiting and compares it.
func one(t *testing.T, c *Channel, want ...ChannelEvent) {
	t.Helper()
	for _, w := range want {
		if e, ok, err := c.TryGet(); !ok || err != nil || e != w {
			t.Errorf("got %+v %v %v, want %+v", e, ok, err, w)
		}
	}
	if e, ok, err := c.TryGet(); ok || err != nil {
		t.Errorf("one event too many: %+v, %v", e, err)
	}
}

// The life of an arming, step by step: what fires it, once, and what does not.
func TestChannelArming(t *testing.T) {
	d := newDomain(t, 3, 2, readerOptions{})
	c := d.NewChannel()
	for bit := range 2 {
		c.Add(bit, d.r[bit].Bell)
	}
	r, q := d.r[0], d.q[0]
	w, v := q.writer(0, ring.SeqCst, d.ringer(0)), q.writer(1, ring.SeqCst, d.ringer(0))
	any := ChannelEvent{Mode: NotifyAny}
	arm := func(mode int) {
		t.Helper()
		if err := c.Arm(0, mode); err != nil {
			t.Fatal(err)
		}
	}
	w.put(1)
	one(t, c)
	arm(NotifyAny) // what is there already is the reader's
	if v := Inspect(q.arm.Word.Load(), q.hints); v.Notify != NotifyAny || v.Member || !v.Armed {
		t.Errorf("an inspector sees %+v", v)
	}
	one(t, c)
	if n := r.readAllOf(); n != 1 {
		t.Errorf("read %d", n)
	}
	w.put(1)
	v.put(1)
	if n := r.readAllOf(); n != 2 {
		t.Errorf("read %d", n)
	}
	if !c.Pending(0) {
		t.Error("nothing is pending")
	}
	one(t, c, any) // although the entries were read before
	if c.Pending(0) {
		t.Error("it is still pending")
	}
	w.put(1)
	d.Consider(0)
	if !c.todo.empty() {
		t.Error("a queue that is not armed is on the channel's list")
	}
	one(t, c) // not armed
	if !r.shared {
		t.Error("the queue is looked at by others and has no lock")
	}

	arm(NotifySolicited)
	r.readAllOf()
	w.put(2)
	one(t, c)
	w.solicit(q, 0)
	one(t, c, ChannelEvent{Mode: NotifySolicited, Solicited: true})

	arm(NotifySolicited)
	r.readAllOf()
	arm(NotifyAny)
	arm(NotifySolicited) // less than any
	arm(NotifyNone)
	v.put(1)
	one(t, c, any)

	arm(NotifyAny)
	r.readAllOf()
	w.solicit(q, 0)
	arm(NotifyAny) // the first arming has its event
	r.readAllOf()
	one(t, c, ChannelEvent{Mode: NotifyAny, Solicited: true})
	w.put(1)
	arm(NotifySolicited)
	w.solicit(q, 0)
	one(t, c, any, ChannelEvent{Mode: NotifySolicited, Solicited: true})

	c.Inject(1)
	c.Inject(1)
	c.Inject(2) // not on the channel
	c.Inject(1 << 30)
	one(t, c, ChannelEvent{Bit: 1, Dummy: true}, ChannelEvent{Bit: 1, Dummy: true})

	arm(NotifyAny)
	w.put(1)
	c.Delete(0)
	one(t, c)
	if err := c.Arm(0, NotifyAny); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a queue that left can be armed: %v", err)
	}
	c.Close()
	if _, _, err := c.TryGet(); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	if d.r[0].armed() != 0 || d.r[1].armed() != 0 {
		t.Error("a closed channel leaves queues armed")
	}
}

// An entry that is solicited has its event although its producer has announced the next one and
// stopped before it published that.
func TestSolicitedIndexAhead(t *testing.T) {
	d := newDomain(t, 1, 1, readerOptions{})
	c := d.NewChannel()
	c.Add(0, d.r[0].Bell)
	if err := c.Arm(0, NotifySolicited); err != nil {
		t.Fatal(err)
	}
	w := d.q[0].writer(0, ring.SeqCst, d.ringer(0))
	w.solicit(d.q[0], 0)
	d.q[0].sol(0).Store(w.prod.Tail() + 1)
	one(t, c, ChannelEvent{Mode: NotifySolicited, Solicited: true})
}

// Many goroutines get events of many queues; each event has one taker, each arming one event, and
// every entry is read.
func TestChannelGetters(t *testing.T) {
	const queues, getters = 3, 4
	each := uint64(15_000)
	if testing.Short() || raceEnabled {
		each /= 5
	}
	for _, o := range orders {
		t.Run(o.String(), func(t *testing.T) {
			registered(t, o)
			d := newDomain(t, queues, 2, readerOptions{order: o, shared: true})
			watchdog(t, d.String)
			total := each * queues * 2
			over := func() bool { return d.count() >= total }
			c := d.NewChannel()
			var armed, events atomic.Int64
			for bit := range queues {
				c.Add(bit, d.r[bit].Bell)
				armed.Add(1)
				if err := c.Arm(bit, NotifyAny); err != nil {
					t.Fatal(err)
				}
			}
			var wg sync.WaitGroup
			for range getters {
				wg.Go(func() {
					for {
						e, ok, err := c.Get(Wait{Stop: over})
						if err != nil {
							t.Error(err)
						}
						if !ok {
							d.Kick()
							return
						}
						events.Add(1)
						armed.Add(1)
						if err := c.Arm(e.Bit, NotifyAny); err != nil {
							t.Error(err)
						}
						d.r[e.Bit].readAllOf()
						if over() {
							d.Kick()
						}
					}
				})
			}
			errs := d.produce(o, each)
			for range queues * 2 {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			wg.Wait()
			for bit := range queues { // what armings are left have no event, or one that nobody took
				c.Inject(bit)
			}
			left := int64(0)
			for {
				e, ok, err := c.TryGet()
				if err != nil || !ok {
					break
				}
				if !e.Dummy {
					left++
				}
			}
			for bit := range queues {
				if notifyOf(d.r[bit].armed()) != NotifyNone {
					left++
				}
				if d.r[bit].broken != nil {
					t.Error(d.r[bit].broken)
				}
			}
			if d.count() != total || armed.Load()-events.Load() != left {
				t.Errorf("%d entries of %d; %d armings, %d events, %d left", d.count(), total,
					armed.Load(), events.Load(), left)
			}
		})
	}
}

// What ends a get that sleeps, beside a producer's ring.
func TestWhatWakesAGetter(t *testing.T) {
	for name, wake := range map[string]func(d *domainQueues, c *Channel) error{
		"injected": func(_ *domainQueues, c *Channel) error { c.Inject(0); return nil },
		// The producer has published and marked, and rings nobody any more.
		"armed again": func(d *domainQueues, c *Channel) error {
			d.q[0].writer(0, ring.SeqCst).publish(1)
			mark(d.q[0].hints.ready, 0)
			return c.Arm(0, NotifyAny)
		},
		"death": func(d *domainQueues, _ *Channel) error {
			d.q[0].writer(0, ring.SeqCst).publish(1)
			d.r[0].Mark(0)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDomain(t, 1, 1, readerOptions{})
			watchdog(t, d.String)
			c := d.NewChannel()
			c.Add(0, d.r[0].Bell)
			if err := c.Arm(0, NotifyAny); err != nil {
				t.Fatal(err)
			}
			done := make(chan error)
			go func() {
				_, ok, err := c.Get(Wait{})
				if err == nil && !ok {
					err = errors.New("no event")
				}
				done <- err
			}()
			d.asleep(t, 1)
			if err := wake(d, c); err != nil {
				t.Error(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// A get ends at its deadline and when told to stop.
func TestGetterGivesUp(t *testing.T) {
	d := newDomain(t, 1, 1, readerOptions{})
	watchdog(t, d.String)
	c := d.NewChannel()
	c.Add(0, d.r[0].Bell)
	var stop atomic.Bool
	done := make(chan bool)
	go func() {
		_, ok, _ := c.Get(Wait{Stop: stop.Load})
		done <- ok
	}()
	d.asleep(t, 1)
	stop.Store(true)
	d.Kick()
	if <-done {
		t.Error("an event out of nothing")
	}
	if _, ok, err := c.Get(Wait{DeadlineNs: Now() + 1e6, SliceNs: 1e5}); ok || err != nil {
		t.Error(ok, err)
	}
}
