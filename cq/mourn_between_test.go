package cq

import (
	"errors"
	"testing"
)

// TestDeathsBetweenSinks: a death that one event queue had no room for is kept for the one that
// replaces it, though the row has another writer in between; with none bound only the last of a row
// is.
func TestDeathsBetweenSinks(t *testing.T) {
	q, err := CreateAnonymous("q", Options{Size: 4, Trust: CrossUser})
	if err != nil {
		t.Fatal(err)
	}
	e, err := CreateAnonymousEvents("e", EventOptions{Size: 4, Write: true})
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
	q, err := CreateAnonymous("q", Options{Size: 4})
	if err != nil {
		t.Fatal(err)
	}
	e, err := CreateAnonymousEvents("e", EventOptions{Size: 4})
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
