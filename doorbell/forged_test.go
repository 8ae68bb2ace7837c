package doorbell

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

// Marks of lanes that do not exist are thrown away, as often as they come.
func TestForgedMarks(t *testing.T) {
	q := heapQueue(t, 3)
	asked := map[int]int{}
	b := NewBell(Config{Arm: q.arm, Hints: q.hints, Lanes: 3,
		Open: func(bit int) (LaneConfig, bool) { asked[bit]++; return LaneConfig{}, false }})
	for range 2 {
		q.hints.ready[0].Store(^uint64(0))
		if !b.Pending() {
			t.Error("marks are not seen")
		}
		b.Take()
		b.Heat()
		if b.Next(0) != -1 || b.Known() != 0 || b.Pending() {
			t.Error("a lane that nobody stands behind is a candidate")
		}
	}
	if len(asked) != 3 || asked[0] != 2 || asked[2] != 2 {
		t.Errorf("asked for %v", asked)
	}
	b.Consider(3)
	b.Consider(1 << 20)
	if more, err := b.Park(); more || err != nil {
		t.Error(more, err)
	}
	b.SetFlags(^uint64(0))
	b.Drop(1)
}

// scribble writes nonsense over all hints until stop.
func scribble(h *Hints, stop *atomic.Bool) {
	rnd := newPace(42)
	for !stop.Load() {
		switch x := rnd.Uint64(); x % 8 {
		case 0:
			h.epoch.Store(uint32(x >> 8))
		case 1, 2:
			h.rung.Store(x >> 8 & 0xff)
		case 3:
			h.latch.Store(uint32(x >> 8))
		case 4:
			h.ready[0].Store(x >> 3)
		case 5:
			h.ready[0].Store(0)
		case 6:
			for i := range h.summary {
				h.summary[i].Store(x >> 3)
			}
		case 7:
			rnd.pause()
		}
	}
	// A forged number that equals that of a coming arming mutes this one arming; only a slice
	// helps then, and what follows does without.
	h.rung.Store(0)
	h.latch.Store(0)
}

// While a peer scribbles over the hints a reader with slices gets on; once it has stopped, nothing
// that was published is missing.
func TestScribbledHints(t *testing.T) {
	const lanes = 3
	each := uint64(20_000)
	if testing.Short() || raceEnabled {
		each /= 4
	}
	for _, o := range orders {
		t.Run(o.String(), func(t *testing.T) {
			registered(t, o)
			q := heapQueue(t, lanes)
			watchdog(t, q.String)
			r := newReader(q, readerOptions{order: o, shared: true})
			var stop atomic.Bool
			var wg sync.WaitGroup
			wg.Go(func() { scribble(q.hints, &stop) })
			errs := produceAll(q, o, each)
			for r.count.Load() < lanes*each {
				r.sread(laneSlots, Wait{DeadlineNs: spin.Now() + 1e6})
				// The full look at the end of a slice.
				for bit := range lanes {
					r.Consider(bit)
				}
				if !stop.Load() && r.count.Load() > lanes*each/2 {
					stop.Store(true)
					wg.Wait()
				}
			}
			for range lanes {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			if r.broken != nil {
				t.Error(r.broken)
			}
			// From here on the bell works again without slices.
			r.sread(1, Wait{DeadlineNs: spin.Now() + 1e6})
			w := q.writer(0, o)
			go w.put(1)
			if n, _ := r.sread(1, Wait{}); n != 1 {
				t.Error("the bell stays dead")
			}
		})
	}
}

// The same for a domain: a set that waits with slices goes round, and ends when told.
func TestScribbledDomain(t *testing.T) {
	d := newDomain(t, 3, 1, readerOptions{})
	watchdog(t, d.String)
	s := d.NewSet()
	for bit := range d.q {
		s.Add(bit, d.r[bit].Bell)
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() { scribble(d.hints, &stop) })
	const rounds = 300
	for i := range rounds {
		ready, err := s.Wait(nil, Wait{DeadlineNs: spin.Now() + 1e5})
		if err != nil || len(ready) > 0 {
			t.Fatal(i, ready, err)
		}
	}
	stop.Store(true)
	wg.Wait()
	w := d.q[1].writer(0, ring.SeqCst, d.ringer(1))
	go w.put(1)
	ready, err := s.Wait(nil, Wait{})
	if err != nil || len(ready) != 1 || ready[0] != 1 {
		t.Fatal(ready, err)
	}
}

// A lane whose index is forged is what the reader finds out when it looks.
func TestForgedTailEndsTheWait(t *testing.T) {
	q := heapQueue(t, 1)
	watchdog(t, q.String)
	r := newReader(q, readerOptions{})
	q.tail(0).Store(1 << 40)
	r.Mark(0)
	if _, why := r.sread(1, Wait{}); why != gotEntries || r.broken == nil {
		t.Fatal(why, r.broken)
	}
}

// Every bit of a domain's hints is set, those that stand for no member and no word too, and the
// words are small against what the summary can name. Sets and channels look, find nothing, and go
// on.
func TestForgedDomainMarks(t *testing.T) {
	d := newDomain(t, 70, 1, readerOptions{})
	watchdog(t, d.String)
	s, c := d.NewSet(), d.NewChannel()
	for _, bit := range []int{0, 69} {
		s.Add(bit, d.r[bit].Bell)
		c.Add(bit, d.r[bit].Bell)
		if err := c.Arm(bit, NotifyAny); err != nil {
			t.Fatal(err)
		}
	}
	c.Add(5, d.r[5].Bell) // attached and not armed
	forge := func() {
		for _, words := range [][]atomic.Uint64{d.hints.ready, d.hints.summary, d.q[69].hints.ready} {
			for i := range words {
				words[i].Store(^uint64(0))
			}
		}
	}
	for range 3 {
		forge()
		if got, err := s.Wait(nil, Wait{DeadlineNs: 1, SliceNs: 1}); len(got) > 0 || err != nil {
			t.Error(got, err)
		}
		forge()
		if e, ok, err := c.TryGet(); ok || err != nil {
			t.Error(e, ok, err)
		}
		forge()
		c.Arm(69, NotifyAny)
		if c.Pending(69) || c.Pending(-1) || c.Pending(1<<20) {
			t.Error("an event is pending")
		}
	}
	// A forged index of solicited entries costs an event too many, and no more.
	if err := c.Arm(0, NotifySolicited); err != nil {
		t.Fatal(err)
	}
	d.q[0].sol(0).Store(^uint64(0))
	d.q[0].writer(0, ring.SeqCst, d.ringer(0)).put(1)
	one(t, c, ChannelEvent{Mode: NotifyAny, Solicited: true})
}

// While a peer scribbles over a domain's hints, waits with slices get on.
func TestScribbledChannel(t *testing.T) {
	d := newDomain(t, 2, 1, readerOptions{shared: true})
	watchdog(t, d.String)
	c, s := d.NewChannel(), d.NewSet()
	c.Add(0, d.r[0].Bell)
	s.Add(1, d.r[1].Bell)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() { scribble(d.hints, &stop) })
	const each = 2_000
	errs := d.produce(ring.SeqCst, each)
	slices := Wait{SliceNs: 1e6}
	wg.Go(func() {
		for d.r[1].count.Load() < each {
			if _, err := s.Wait(nil, slices); err != nil {
				t.Error(err)
			}
			d.r[1].readAllOf()
		}
	})
	for d.r[0].count.Load() < each {
		if err := c.Arm(0, NotifyAny); err != nil {
			t.Error(err)
		}
		if d.r[0].readAllOf(); d.r[0].count.Load() == each {
			break
		}
		if _, _, err := c.Get(slices); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	stop.Store(true)
	wg.Wait()
	if d.r[0].broken != nil || d.r[1].broken != nil {
		t.Error(d.r[0].broken, d.r[1].broken)
	}
}
