package wake

import (
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
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
		k := r.read(1) // the first look after a lane was parked leaves it so
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
		if e, ok, err := c.Get(noWait); !ok || err != nil || e != w {
			t.Errorf("got %+v %v %v, want %+v", e, ok, err, w)
		}
	}
	if e, ok, err := c.Get(noWait); ok || err != nil {
		t.Errorf("one event too many: %+v, %v", e, err)
	}
}

// arming is a channel with two queues, and two writers of the first one.
type arming struct {
	d    *domainQueues
	c    *Channel
	w, v *writer
}

// arm arms the first queue.
func (a *arming) arm(t *testing.T, mode int) {
	t.Helper()
	shmtest.Must(t, a.c.Arm(0, mode))
}

var anyEvent = ChannelEvent{Mode: NotifyAny}

// The life of an arming, step by step: what fires it, once, and what does not.
func TestChannelArming(t *testing.T) {
	d := newDomain(t, 3, 2, readerOptions{})
	a := &arming{d: d, c: d.NewChannel(), w: d.q[0].writer(0, ring.SeqCst, d.ringer(0)),
		v: d.q[0].writer(1, ring.SeqCst, d.ringer(0))}
	for bit := range 2 {
		a.c.Add(bit, d.r[bit].Bell)
	}
	armedForAny(t, a)
	armedForSolicited(t, a)
	armedAndGone(t, a)
}

// armedForAny: an arming fires once, for what comes later, also if that was read meanwhile.
func armedForAny(t *testing.T, a *arming) {
	r, q := a.d.r[0], a.d.q[0]
	a.w.put(1)
	one(t, a.c)
	a.arm(t, NotifyAny) // what is there already is the reader's
	if v := Inspect(q.arm.Word.Load(), q.hints); v.Notify != NotifyAny || v.Member || !v.Armed {
		t.Errorf("an inspector sees %+v", v)
	}
	one(t, a.c)
	if n := r.readAllOf(); n != 1 {
		t.Errorf("read %d", n)
	}
	a.w.put(1)
	a.v.put(1)
	if n := r.readAllOf(); n != 2 {
		t.Errorf("read %d", n)
	}
	one(t, a.c, anyEvent) // although the entries were read before
	one(t, a.c)
	a.w.put(2)
	a.d.Consider(0)
	if !a.c.todo.empty() {
		t.Error("a queue that is not armed is on the channel's list")
	}
	one(t, a.c) // not armed
	if !r.shared {
		t.Error("the queue is looked at by others and has no lock")
	}
}

// armedForSolicited: the greater of two armings counts, but an event that is due stays one.
func armedForSolicited(t *testing.T, a *arming) {
	r, q := a.d.r[0], a.d.q[0]
	a.arm(t, NotifySolicited)
	r.readAllOf()
	a.w.put(2)
	one(t, a.c)
	a.w.solicit(q, 0)
	one(t, a.c, ChannelEvent{Mode: NotifySolicited, Solicited: true})

	a.arm(t, NotifySolicited)
	r.readAllOf()
	a.arm(t, NotifyAny)
	a.arm(t, NotifySolicited) // less than any
	a.arm(t, NotifyNone)
	a.v.put(1)
	one(t, a.c, anyEvent)

	a.arm(t, NotifyAny)
	r.readAllOf()
	a.w.solicit(q, 0)
	a.arm(t, NotifyAny) // the first arming has its event
	r.readAllOf()
	one(t, a.c, ChannelEvent{Mode: NotifyAny, Solicited: true})
	a.w.put(1)
	a.arm(t, NotifySolicited)
	a.w.solicit(q, 0)
	one(t, a.c, anyEvent, ChannelEvent{Mode: NotifySolicited, Solicited: true})
}

// armedAndGone: a queue that is not on the channel has no events, not even dummies.
func armedAndGone(t *testing.T, a *arming) {
	a.c.Inject(1)
	a.c.Inject(1)
	a.c.Inject(2) // not on the channel
	a.c.Inject(1 << 30)
	one(t, a.c, ChannelEvent{Bit: 1, Dummy: true}, ChannelEvent{Bit: 1, Dummy: true})

	a.arm(t, NotifyAny)
	a.w.put(1)
	a.c.Delete(0)
	one(t, a.c)
	if err := a.c.Arm(0, NotifyAny); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a queue that left can be armed: %v", err)
	}
	a.c.Close()
	if _, _, err := a.c.Get(noWait); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	if a.d.r[0].armed() != 0 || a.d.r[1].armed() != 0 {
		t.Error("a closed channel leaves queues armed")
	}
}

// An entry that is solicited has its event although its producer has announced the next one and
// stopped before it published that.
func TestSolicitedIndexAhead(t *testing.T) {
	d := newDomain(t, 1, 1, readerOptions{})
	c := d.NewChannel()
	c.Add(0, d.r[0].Bell)
	shmtest.Must(t, c.Arm(0, NotifySolicited))
	w := d.q[0].writer(0, ring.SeqCst, d.ringer(0))
	w.solicit(d.q[0], 0)
	d.q[0].sol(0).Store(w.prod.Tail() + 1)
	one(t, c, ChannelEvent{Mode: NotifySolicited, Solicited: true})
}

// TestChannelLateJudge: a getter that picked a queue which is taken off meanwhile leaves its words
// alone, for their memory may be gone.
func TestChannelLateJudge(t *testing.T) {
	late := 0
	for range 50 {
		d := newDomain(t, 1, 1, readerOptions{shared: true})
		c := d.NewChannel()
		c.Add(0, d.r[0].Bell)
		shmtest.Must(t, c.Arm(0, NotifyAny))
		d.r[0].Lock()
		var all sync.WaitGroup
		all.Go(func() { c.Delete(0) }) // waits for the lock
		time.Sleep(2 * time.Millisecond)
		d.q[0].writer(0, ring.SeqCst, d.ringer(0)).publish(1)
		mark(d.q[0].hints.ready, 0)
		mark(d.hints.ready, 0)
		mark(d.hints.summary, 0)
		all.Go(func() { _, _, _ = c.Get(noWait) }) // picks the queue, and waits behind
		time.Sleep(2 * time.Millisecond)
		d.r[0].Unlock()
		all.Wait()
		if d.q[0].hints.ready[0].Load() == 0 {
			late++
		}
	}
	if late > 25 { // the getter may have been first now and then
		t.Errorf("looked at a queue that was off the channel, %d of 50 times", late)
	}
}
