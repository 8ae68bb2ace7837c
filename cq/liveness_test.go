package cq

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// seatRig is a counter in whose next seat tests die.
type seatRig struct {
	*testing.T
	c *Counter
}

const rigSeat = 1

// Words of a seat's record, see package shm.
const (
	seatGen, seatStart, seatDeath, seatTally = 0, 24, 32, 64
)

func newSeatRig(t *testing.T) seatRig {
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
	return seatRig{t, c}
}

// word is one of the seat's record.
func (r seatRig) word(at int) []byte {
	return r.c.last.Bytes()[kind.OffCounterRows+rigSeat*shm.SeatBytes+at:]
}

func (r seatRig) load(at int) uint64     { return binary.NativeEndian.Uint64(r.word(at)) }
func (r seatRig) store(at int, v uint64) { binary.NativeEndian.PutUint64(r.word(at), v) }

// lives takes the seat.
func (r seatRig) lives() *shm.Seat {
	r.Helper()
	s, err := r.c.seats.Take()
	if err != nil || s.Index() != rigSeat {
		r.Fatalf("seat %+v, %v", s, err)
	}
	return s
}

// dies leaves the seat as one who was killed there, and returns its generation.
func (r seatRig) dies() uint64 {
	r.Helper()
	s := r.lives()
	g := s.Owner().Generation
	s.Leave()
	r.store(seatStart, r.load(seatStart)-1) // one with our number that began before us is gone
	r.store(seatGen, g)
	return g
}

// news looks, and wants the death of a generation, or nothing if that is 0.
func (r seatRig) news(what string, m *userDeaths, generation, more uint64) []peerNews {
	r.Helper()
	got := m.look()
	for n := 0; n < 60_000 && len(got) == 0 && generation != 0; n++ {
		time.Sleep(time.Millisecond) // the notice of who is not in the record may come later
		got = m.look()
	}
	if generation == 0 && len(got) == 0 {
		return got
	}
	if len(got) != 1 || got[0].Generation != generation || got[0].More != more ||
		got[0].Lane != rigSeat || got[0].PID != shm.Self().PID || got[0].kind != EventPeerDeath {
		r.Errorf("%s: %+v, want the death of %d and %d more", what, got, generation, more)
	}
	return got
}

// TestSeatDeaths: every death in a seat is told or counted, once, whenever somebody looks.
func TestSeatDeaths(t *testing.T) {
	r := newSeatRig(t)
	r.dies()
	m := newUserDeaths(r.c)
	defer m.close(nil)
	r.news("before it began", m, 0, 0)
	r.news("seen dead", m, r.dies(), 0)
	r.news("again", m, 0, 0)
	s := r.lives()
	r.news("told already", m, 0, 0)
	s.Leave()
	r.news("closed", m, 0, 0)
	last := r.dies()
	s = r.lives()
	r.news("seen in the record only", m, last, 0)
	r.news("again", m, 0, 0)
	s.Leave()
	for range 4 {
		last = r.dies()
	}
	r.lives().Leave()
	r.news("four between two looks, and one who left", m, last, 3)
	r.news("seen dead", m, r.dies(), 0)
	last = r.dies()
	s = r.lives()
	r.news("one of two is told already", m, last, 0)
	s.Leave()
	last = r.dies()
	s = r.lives()
	r.store(seatGen, 0) // he was killed before he noted himself
	r.news("recorded by one who was killed over it", m, last, 0)
	s.Leave()
	r.news("once", m, 0, 0)
}

// TestSeatDeathsHalfRecorded: who begins to look while the record of a death is being replaced, or
// was left so, makes of what was before no news, and counts from there.
func TestSeatDeathsHalfRecorded(t *testing.T) {
	r := newSeatRig(t)
	early := newUserDeaths(r.c)
	defer early.close(nil)
	for range 3 {
		r.dies()
	}
	last := r.load(seatGen)
	r.lives().Leave()
	r.news("three", early, last, 2)
	for _, counted := range []bool{false, true} {
		r.dies()
		r.store(seatDeath, 0)
		if counted {
			r.store(seatTally, (r.load(seatTally)>>16+1)<<16|r.load(seatGen))
		}
		late := newUserDeaths(r.c)
		r.news("early", early, r.load(seatGen), 0)
		r.news("before it began", late, 0, 0)
		last = r.dies()
		r.lives().Leave()
		r.news("early", early, last, 0)
		r.news("late", late, last, 0)
		late.close(nil)
	}
	// What a record claims is bounded, and never goes round.
	last = r.dies()
	r.store(seatTally, 0)
	r.lives().Leave()
	r.news("with a count that fell", early, last, 0)
}

// TestSeatDeathsKept: what one event queue had no room for reaches the next one that is looked for,
// also when there was another in between for no time at all.
func TestSeatDeathsKept(t *testing.T) {
	r := newSeatRig(t)
	m := newUserDeaths(r.c)
	last := r.dies()
	r.lives().Leave()
	m.close(r.news("dead", m, last, 0))
	m.close(nil)
	m.close(r.news("for the third", m, last, 0))
	r.news("for the fourth", m, last, 0)
	m.close(nil)
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
	h := q.side.(*unnamedReader)
	kept := func(what string, want int) {
		t.Helper()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.succeeded(1)
		if len(h.dead) != want {
			t.Errorf("%s: %d deaths of the row, want %d", what, len(h.dead), want)
		}
	}
	m := newWriterDeaths(&q.core, e.sinkID())
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
