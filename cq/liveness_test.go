package cq

import (
	"errors"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// TestSeatDeaths: every death in a seat is told or counted, once, whenever somebody looks.
func TestSeatDeaths(t *testing.T) {
	c, err := CreateCounter(Unnamed("seats"), CounterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const seat = 7
	row := &c.words.Rows[seat]
	dead := shm.Self() // one with our number that began before us is gone
	dead.StartTicks--
	row.SitDown(100, dead)
	m := newCounterMourner(c)
	want := func(what string, mark, more uint64) {
		t.Helper()
		got := m.look()
		for n := 0; n < 60_000 && len(got) == 0 && mark != 0; n++ {
			time.Sleep(time.Millisecond) // the notice comes from another goroutine
			got = m.look()
		}
		switch {
		case mark == 0 && len(got) == 0:
		case len(got) != 1 || got[0].Generation != mark || got[0].More != more ||
			got[0].Lane != seat || got[0].PID != dead.PID || got[0].kind != EventPeerDeath:
			t.Errorf("%s: %+v, want the death of %d and %d more", what, got, mark, more)
		}
	}
	want("before it began", 0, 0)
	row.SitDown(101, dead)
	want("seen dead", 101, 0)
	want("again", 0, 0)
	row.SitDown(102, shm.Self())
	want("told already", 0, 0)
	row.Mark.Store(0) // it closes
	want("closed", 0, 0)
	row.SitDown(103, dead)
	row.SitDown(104, shm.Self())
	want("seen in the record only", 103, 0)
	want("again", 0, 0)
	row.Mark.Store(0)
	for mark := uint64(105); mark < 109; mark++ {
		row.SitDown(mark, dead)
	}
	row.SitDown(109, shm.Self())
	want("four between two looks", 108, 3)
	row.Mark.Store(0)
	row.SitDown(110, dead)
	want("seen dead", 110, 0)
	row.SitDown(111, dead)
	row.SitDown(112, shm.Self())
	want("one of two is told already", 111, 0)
	row.Mark.Store(0)
	row.SitDown(113, dead)
	row.Bury() // who sat down there was killed over it
	want("buried twice", 113, 0)
	row.SitDown(114, shm.Self())
	want("once", 0, 0)
	m.close(nil)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// seatRig has a row of a counter that this test writes, as those who have its seat would.
func seatRig(t *testing.T) (c *Counter, row *kind.CounterRow, dead shm.Owner) {
	t.Helper()
	c, err := CreateCounter(Unnamed("seats"), CounterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	dead = shm.Self() // one with our number that began before us is gone
	dead.StartTicks--
	return c, &c.words.Rows[7], dead
}

// wantNews looks, and wants the death of a mark, or nothing if that is 0.
func wantNews(t *testing.T, what string, m *counterMourner, mark, more uint64) []peerNews {
	t.Helper()
	got := m.look()
	for n := 0; n < 60_000 && len(got) == 0 && mark != 0; n++ {
		time.Sleep(time.Millisecond) // the notice of who is not in the record may come later
		got = m.look()
	}
	if mark == 0 && len(got) == 0 {
		return got
	}
	if len(got) != 1 || got[0].Generation != mark || got[0].More != more {
		t.Errorf("%s: %+v, want the death of %d and %d more", what, got, mark, more)
	}
	return got
}

// TestSeatDeathsCounted: however often whoever buries others is killed over it, and wherever, each
// death is counted once.
func TestSeatDeathsCounted(t *testing.T) {
	c, row, dead := seatRig(t)
	mark := uint64(100)
	dies := func() { mark++; row.SitDown(mark, dead) }
	// killedLate buries the last one and is killed before its last store; killedEarly after it made
	// the record nobody's, and said that it writes one, or not even that.
	killedLate := func() {
		row.Bury()
		row.Deaths.Store(row.Deaths.Load() - 1)
	}
	killedEarly := func(said bool) {
		n := row.Deaths.Load()
		if row.FormerMark.Load() != 0 {
			n += n % 2
		}
		row.FormerMark.Store(0)
		if row.Deaths.Store(n); said {
			row.Deaths.Store(n | 1)
		}
	}
	dies()
	dies() // the first is in the record
	killedLate()
	m := newCounterMourner(c)
	defer m.close(nil)
	wantNews(t, "before it began", m, 0, 0)
	for range 3 {
		dies()
		killedLate()
		wantNews(t, "one, not said to be counted", m, mark, 0)
		row.SitDown(mark+1, shm.Self())
		row.Mark.Store(0)
		mark++
		wantNews(t, "once", m, 0, 0)
	}
	dies()
	row.Bury()
	wantNews(t, "one", m, mark, 0)
	row.Mark.Store(0)
	for range 4 {
		dies()
		for range 2 {
			killedEarly(false)
			killedEarly(true)
		}
		killedLate()
		row.Bury()
	}
	wantNews(t, "four", m, mark, 3)
	row.Mark.Store(0)
	for range 3 {
		dies()
		killedLate()
	}
	wantNews(t, "three that were not said to be whole", m, mark, 2)
	// A look while the record is nobody's, and a mourner that begins then.
	row.Mark.Store(0)
	dies()
	killedEarly(true)
	wantNews(t, "recorded by nobody yet", m, mark, 0)
	late := newCounterMourner(c)
	defer late.close(nil)
	row.Bury()
	row.Mark.Store(0)
	wantNews(t, "told", m, 0, 0)
	wantNews(t, "before it began", late, 0, 0)
	dies()
	row.Bury()
	row.Mark.Store(0)
	wantNews(t, "one after", m, mark, 0)
	wantNews(t, "one after", late, mark, 0)
	// What a row claims is bounded, and never goes round.
	row.Deaths.Store(0)
	dies()
	row.Bury()
	wantNews(t, "with a count that fell", m, mark, 0)
}

// TestSeatDeathsKept: what one event queue had no room for reaches the next one that is looked for,
// also when there was another in between for no time at all.
func TestSeatDeathsKept(t *testing.T) {
	c, row, dead := seatRig(t)
	m := newCounterMourner(c)
	row.SitDown(100, dead)
	row.SitDown(101, shm.Self())
	m.close(wantNews(t, "dead", m, 100, 0))
	m.close(nil)
	m.close(wantNews(t, "for the third", m, 100, 0))
	wantNews(t, "for the fourth", m, 100, 0)
	m.close(nil)
}

// TestSeatDeathsCountedAtOnce: whoever looks while others are buried finds each with his own count.
func TestSeatDeathsCountedAtOnce(t *testing.T) {
	_, row, dead := seatRig(t)
	const total = 20_000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for mark := uint64(1); mark <= total+1; mark++ {
			row.SitDown(mark, dead) // and the one before is in the record
		}
	}()
	var was uint64
	for last := (kind.Fallen{}); last.Mark < total; {
		var deaths uint64
		if last, deaths = row.Fallen(); last.Mark != 0 && last.Mark != deaths || last.Mark == 0 &&
			deaths > total {
			t.Fatalf("%d has count %d", last.Mark, deaths)
		}
		if deaths < was {
			t.Fatalf("%d after %d", deaths, was)
		}
		was = deaths
	}
	<-done
	row.Mark.Store(0)
}

// TestDeathsBetweenSinks: a death that one event queue had no room for is kept for the one that
// replaces it, though the row has another writer in between; with none bound only the last of a row
// is.
func TestDeathsBetweenSinks(t *testing.T) {
	q, err := Create(Unnamed("q"), Options{Size: 4, Trust: CrossUser})
	if err != nil {
		t.Fatal(err)
	}
	e, err := CreateEvents(Unnamed("e"), EventOptions{Size: 4, Write: true})
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	h := q.home.(*memfdHome)
	kept := func(what string, want int) {
		t.Helper()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.succeeded(1)
		if len(h.dead) != want {
			t.Errorf("%s: %d deaths of the row, want %d", what, len(h.dead), want)
		}
	}
	m := newLaneMourner(&q.core, e.sinkID())
	m.close([]peerNews{{EventPeerDeath, PeerEntry{Role: PeerWriter, Lane: 1}}})
	kept("replaced", 1)
	must(q.BindEvents(nil))
	kept("ended", 0)
	must(q.Close())
	must(e.Close())
}

// lateSink notes whether it got its room back while deaths could still be reported to it.
type lateSink struct {
	EventSink
	q     *Queue
	early bool
}

func (s *lateSink) returnCredits(n int) {
	s.q.deaths.mu.Lock()
	s.early = s.early || s.q.deaths.report != nil && s.q.deaths.report.sink == s
	s.q.deaths.mu.Unlock()
	s.EventSink.returnCredits(n)
}

// TestSinkReplacedWhole: a death that waits for room at one event queue goes to the one that
// replaces it, not into the room that the former one gets back by that.
func TestSinkReplacedWhole(t *testing.T) {
	q, err := Create(Unnamed("q"), Options{Size: 4})
	if err != nil {
		t.Fatal(err)
	}
	e, err := CreateEvents(Unnamed("e"), EventOptions{Size: 4})
	if err != nil {
		t.Fatal(err)
	}
	was := &lateSink{EventSink: e, q: q}
	for _, sink := range []EventSink{was, e, was, nil} {
		if err := q.BindEvents(sink); err != nil {
			t.Fatal(err)
		}
	}
	if was.early {
		t.Error("its room came back before its deaths ended")
	}
	if err := errors.Join(q.Close(), e.Close()); err != nil {
		t.Error(err)
	}
}
