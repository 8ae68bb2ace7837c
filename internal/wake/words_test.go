package wake

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

// Programs in other languages read these words: where they lie is part of the format.
func TestWordsLieWhereTheFormatSays(t *testing.T) {
	mem := words8(4096)
	h := must(MapHints(mem, 130))
	d := must(MapDomain(mem[2048:], 130))
	arm, row := must(ArmAt(mem, 1024)), must(RowAt(mem, 1152))
	for name, c := range map[string]struct {
		store func()
		off   int
	}{
		"epoch":          {func() { h.epoch.Store(1) }, 0},
		"rung":           {func() { h.rung.Store(1) }, 128},
		"latch":          {func() { h.latch.Store(1) }, 256},
		"ready 0":        {func() { mark(h.ready, 0) }, 384},
		"ready 64":       {func() { mark(h.ready, 64) }, 392},
		"ready 128":      {func() { mark(h.ready, 128) }, 400},
		"armed":          {func() { arm.Word.Store(1) }, 1024},
		"parked":         {func() { row.Parked.Store(Parked) }, 1152},
		"wake index":     {func() { row.Index.Store(1) }, 1160},
		"domain epoch":   {func() { d.epoch.Store(1) }, 2048},
		"domain ready":   {func() { mark(d.ready, 128) }, 2048 + 400},
		"domain summary": {func() { mark(d.summary, 0) }, 2048 + 408},
	} {
		clear(mem)
		c.store()
		for off := range mem {
			if want := off == c.off; (mem[off] != 0) != want {
				t.Errorf("%s: byte %d holds %d", name, off, mem[off])
			}
		}
	}
	if HintsBytes(130) != 408 || DomainBytes(130) != 416 || HintsBytes(1) != 392 {
		t.Error(HintsBytes(130), DomainBytes(130), HintsBytes(1))
	}
	if DomainBytes(64*64+1) != 384+65*8+2*8 {
		t.Error(DomainBytes(64*64 + 1))
	}
}

func TestNoRoomForWords(t *testing.T) {
	mem := words8(4096)
	for name, f := range map[string]func() error{
		"hints, a byte short":   func() error { return e(MapHints(mem[:HintsBytes(65)-1], 65)) },
		"hints, no bits":        func() error { return e(MapHints(mem, 0)) },
		"hints, unaligned":      func() error { return e(MapHints(mem[4:], 1)) },
		"domain, a byte short":  func() error { return e(MapDomain(mem[:DomainBytes(65)-1], 65)) },
		"domain, a word short":  func() error { return e(MapDomain(mem[:DomainBytes(65)-8], 65)) },
		"armed word at the end": func() error { return e(ArmAt(mem, 4096-8)) },
		"armed word beyond":     func() error { return e(ArmAt(mem, 1<<63)) },
		"armed word, wrap":      func() error { return e(ArmAt(mem, 1<<64-8)) },
		"armed word, unaligned": func() error { return e(ArmAt(mem, 4)) },
		"row in nothing":        func() error { return e(RowAt(nil, 0)) },
	} {
		if f() == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if HintsBytes(65) > 4096 || e(MapHints(mem[:HintsBytes(65)], 65)) != nil ||
		e(MapDomain(mem[:DomainBytes(65)], 65)) != nil || e(ArmAt(mem, 4096-128)) != nil {
		t.Error("what fits exactly is refused")
	}
}

func e[T any](_ T, err error) error { return err }

func TestInspect(t *testing.T) {
	h := must(MapHints(words8(int(HintsBytes(130))), 130))
	mark(h.ready, 1)
	mark(h.ready, 129)
	h.latch.Store(1)
	h.rung.Store(6)
	h.epoch.Store(8)
	got := Inspect(7<<armGenShift|armDirect|armDom|7, h)
	want := View{Armed: true, Direct: true, Member: true, Seq: 7, Rung: 6, Epoch: 8, Signal: true,
		Ready: 2, Latch: 1}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	mark(h.ready, 131) // no lane
	h.latch.Store(7)
	if got := Inspect(0, h); got.Latch != 7 || got.Stray != 1<<3 || !got.Signal {
		t.Errorf("what no honest producer writes: %+v", got)
	}
	if got := Inspect(armFD, h); !got.FD || got.Direct || got.Member {
		t.Errorf("%+v", got)
	}
	if got := Inspect(7, h); got.Armed {
		t.Errorf("%+v", got)
	}
}

func TestBitset(t *testing.T) {
	b := newBitset(130)
	if !b.empty() || b.next(0) != -1 || b.next(1000) != -1 {
		t.Fatal("not empty")
	}
	members := []int{0, 63, 64, 129}
	for _, i := range members {
		b.set(i)
	}
	var got []int
	for i := b.next(0); i >= 0; i = b.next(i + 1) {
		got = append(got, i)
	}
	if len(got) != 4 || got[1] != 63 || got[3] != 129 || b.has(65) || !b.has(64) {
		t.Fatal(got)
	}
	for _, i := range members {
		b.clear(i)
	}
	if !b.empty() {
		t.Fatal("clear")
	}
}

// mark skips the store of a bit that is set: the line then stays shared between producers.
func TestMarkKeepsOtherBits(t *testing.T) {
	words := make([]atomic.Uint64, 2)
	for _, i := range []int{3, 3, 70, 71} {
		mark(words, i)
	}
	if words[0].Load() != 8 || words[1].Load() != 0xc0 {
		t.Fatal(words[0].Load(), words[1].Load())
	}
}

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
	eachOrder(t, func(t *testing.T, o ring.Order) {
		x := newTraffic(t, 1, 3, readerOptions{order: o, shared: true, alone: true}, 20_000)
		q, r := x.q[0], x.r[0]
		var stop atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() { scribble(q.hints, &stop) })
		x.by(func() error {
			for !x.over() {
				r.sread(laneSlots, Wait{DeadlineNs: spin.Now() + 1e6})
				// The full look at the end of a slice.
				for bit := range q.lanes {
					r.Consider(bit)
				}
				if !stop.Load() && x.count() > x.total/2 {
					stop.Store(true)
					wg.Wait()
				}
			}
			return nil
		})
		x.run(nil)
		// From here on the bell works again without slices.
		r.sread(1, Wait{DeadlineNs: spin.Now() + 1e6})
		w := q.writer(0, o)
		go w.put(1)
		if n, _ := r.sread(1, Wait{}); n != 1 {
			t.Error("the bell stays dead")
		}
	})
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
		shmtest.Must(t, c.Arm(bit, NotifyAny))
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
		if e, ok, err := c.Get(noWait); ok || err != nil {
			t.Error(e, ok, err)
		}
		forge()
		c.Arm(69, NotifyAny)
		if e, ok, err := c.Get(noWait); ok || err != nil {
			t.Error("an event of a queue that there is not: ", e, err)
		}
	}
	// A forged index of solicited entries costs an event too many, and no more.
	shmtest.Must(t, c.Arm(0, NotifySolicited))
	d.q[0].sol(0).Store(^uint64(0))
	d.q[0].writer(0, ring.SeqCst, d.ringer(0)).put(1)
	one(t, c, ChannelEvent{Mode: NotifyAny, Solicited: true})
}

// While a peer scribbles over a domain's hints, waits with slices get on.
func TestScribbledChannel(t *testing.T) {
	x := newTraffic(t, 2, 1, readerOptions{shared: true}, 2_000)
	c, s := x.NewChannel(), x.NewSet()
	c.Add(0, x.r[0].Bell)
	s.Add(1, x.r[1].Bell)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() { scribble(x.hints, &stop) })
	for bit, next := range []func(Wait) error{
		func(w Wait) error { _, _, err := c.Get(w); return err },
		func(w Wait) error { _, err := s.Wait(nil, w); return err },
	} {
		x.by(func() (err error) {
			for err == nil {
				if bit == 0 {
					err = c.Arm(0, NotifyAny)
				}
				if x.r[bit].readAllOf(); x.r[bit].count.Load() == x.each {
					return err
				}
				err = errors.Join(err, next(Wait{SliceNs: 1e6}))
			}
			return err
		})
	}
	x.run(nil)
	stop.Store(true)
	wg.Wait()
}
