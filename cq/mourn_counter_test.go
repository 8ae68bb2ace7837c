package cq

import (
	"testing"
	"time"

	"github.com/shmring/shmring/shm"
)

// TestSeatDeaths: every death in a seat is told or counted, once, whenever somebody looks.
func TestSeatDeaths(t *testing.T) {
	c, err := CreateAnonymousCounter("seats", CounterOptions{})
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
