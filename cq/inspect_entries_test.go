package cq_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func entries(t testing.TB, i *cq.Inspector, n int, since map[int]uint64) []cq.LaneEntries {
	t.Helper()
	lanes, err := i.Entries(n, since)
	must(t, err)
	return lanes
}

func TestEntriesOfEveryState(t *testing.T) {
	d, q := create(t, cq.Options{Size: 8, MaxLanes: 2})
	w := attach(t, d, queueName(t))
	i := inspector(t, d, queueName(t))
	if lanes := entries(t, i, 10, nil); len(lanes) != 2 || len(lanes[1].Entries) != 0 {
		t.Fatalf("%+v", lanes)
	}
	post(t, w, 0, 4)
	if got := read(t, q, 2); len(got) != 2 {
		t.Fatal(got)
	}
	must(t, w.PostError(&cq.ErrorEntry{Context: 77, Err: cq.ETrunc, ProvErrno: -3, OverrunBytes: 9,
		ErrData: []byte("why"), Flags: cq.FlagRecv | cq.FlagNoContext}))
	es, err := q.Peek(1)
	must(t, err)
	l := entries(t, i, 10, nil)[1]
	if l.Row != 1 || l.Own || l.First != 0 || l.Tail != 5 || len(l.Entries) != 5 {
		t.Fatalf("%+v", l)
	}
	for k, want := range []cq.EntryState{cq.EntryReleased, cq.EntryReleased, cq.EntryPeeked,
		cq.EntryWaiting, cq.EntryWaiting} {
		e := l.Entries[k]
		if e.Index != uint64(k) || e.State != want || (e.Error != nil) != (k == 4) ||
			k < 4 && e.Entry.Context != uint64(k) {
			t.Errorf("entry %d: %+v, want %v", k, e, want)
		}
	}
	if e := l.Entries[4].Error; e.Context != 77 || e.Err != cq.ETrunc || e.ProvErrno != -3 ||
		e.OverrunBytes != 9 || !bytes.Equal(e.ErrData, []byte("why")) ||
		e.Flags != cq.FlagRecv|cq.FlagNoContext {
		t.Errorf("%+v", e)
	}
	must(t, q.Release(len(es)))
	if l = entries(t, i, 2, nil)[1]; len(l.Entries) != 2 || l.Entries[0].Index != 3 {
		t.Errorf("the last two: %+v", l)
	}
	if l = entries(t, i, 10, map[int]uint64{1: 4})[1]; len(l.Entries) != 1 {
		t.Errorf("since 4: %+v", l)
	}
	if l = entries(t, i, 0, nil)[1]; len(l.Entries) != 0 {
		t.Errorf("none: %+v", l)
	}
	// Entries over which others were published are gone.
	read(t, q, 8)
	must(t, q.ReadErr(&cq.ErrorEntry{}))
	post(t, w, 5, 12)
	if l = entries(t, i, 100, nil)[1]; l.First != 4 || l.Tail != 12 || len(l.Entries) != 8 ||
		l.Entries[0].Index != 4 || l.Entries[0].Error == nil || l.Entries[7].Entry.Context != 11 {
		t.Errorf("%+v", l)
	}
	own, err := q.Writer()
	must(t, err)
	post(t, own, 0, 1)
	must(t, own.Close())
	if l = entries(t, i, 100, nil)[0]; !l.Own || len(l.Entries) != 1 {
		t.Errorf("own lane: %+v", l)
	}
}

// TestEntriesOfEvents: what an event queue holds is shown as events.
func TestEntriesOfEvents(t *testing.T) {
	d, e := createEvents(t, cq.EventOptions{Size: 8, Write: true})
	fid := cq.FID{Kind: cq.FIDEndpoint, ID: 5, Generation: 2}
	_, err := e.Write(&cq.Event{Event: cq.EventShutdown, FID: fid, Context: 3, Data: 4,
		Payload: []byte("gone")})
	must(t, err)
	_, err = e.WriteErr(&cq.EventError{FID: fid, Context: 6, Err: cq.ETrunc, ErrData: []byte("why")})
	must(t, err)
	es := entries(t, inspector(t, d, e.Name()), 10, nil)[0].Entries
	if len(es) != 2 || es[0].Event == nil || es[1].EventError == nil || es[0].Error != nil {
		t.Fatalf("%+v", es)
	}
	if ev := es[0].Event; ev.Event != cq.EventShutdown || ev.FID != fid || ev.Context != 3 ||
		ev.Data != 4 || string(ev.Payload) != "gone" {
		t.Errorf("%+v", ev)
	}
	if ev := es[1].EventError; ev.FID != fid || ev.Context != 6 || ev.Err != cq.ETrunc ||
		string(ev.ErrData) != "why" {
		t.Errorf("%+v", ev)
	}
	if n, err := e.Read(&cq.Event{Payload: make([]byte, 0, 8)}); err != nil || n == 0 {
		t.Errorf("looking took it: %d, %v", n, err)
	}
	_, err = e.ReadErr(&cq.EventError{})
	must(t, err)
}

// TestEntriesWhileBusy: what is shown is never one entry's beginning with another's end, unless it
// was read already, when it may be.
func TestEntriesWhileBusy(t *testing.T) {
	shmtest.Long(t)
	const size = 16
	d, q := create(t, cq.Options{Size: size})
	w := attach(t, d, queueName(t))
	i := inspector(t, d, queueName(t))
	var stop atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		for n := uint64(0); !stop.Load(); {
			slot, _, err := w.Reserve(1)
			if err != nil {
				runtime.Gosched()
				continue
			}
			// A writer that takes its time over half an entry.
			slot[0].Context, slot[0].Len = n, n
			for range 500 {
				n := n * n // keep busy
				_ = n
			}
			slot[0].Data, slot[0].Tag, slot[0].Src = n, n, cq.From(cq.Addr(n))
			if w.Commit(1) == nil {
				n++
			}
		}
	})
	all.Go(func() {
		for buf := make([]cq.Msg, 1); !stop.Load(); {
			_, _ = cq.Read(q, buf)
		}
	})
	var shown int
	last := uint64(0)
	for range 20000 {
		l := entries(t, i, size, nil)[1]
		if l.Err != nil {
			t.Fatal(l.Err)
		}
		for _, s := range l.Entries {
			e := s.Entry
			whole := e.Context == s.Index && e.Len == s.Index && e.Data == s.Index &&
				e.Tag == s.Index && uint64(e.Src.Addr()) == s.Index
			if s.State != cq.EntryReleased && !whole {
				t.Fatalf("entry %d is torn: %+v", s.Index, e)
			}
			shown++
		}
		if l.Tail < last {
			t.Fatalf("tail went from %d to %d", last, l.Tail)
		}
		last = l.Tail
	}
	stop.Store(true)
	all.Wait()
	t.Log(shown, "entries of", last)
}

// TestEntriesWild has a peer that puts anything at all where entries should be.
func TestEntriesWild(t *testing.T) {
	d, _, one, two := bareQueue(t)
	i := inspector(t, d, queueName(t))
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		for id, o := range map[uint32]*shm.Object{1: one, 2: two} {
			for _, k := range []shm.SectionKind{cq.SectSlots, cq.SectErrors} {
				for off := 0; off < 4*64; off += 8 {
					put(t, o, k, id, off, rnd.Uint64()>>rnd.IntN(64))
				}
			}
			put(t, o, cq.SectLane, id, 0, 2)
			put(t, o, cq.SectSlots, id, 56, 2)          // an error entry with index 0
			put(t, o, cq.SectSlots, id, 64+56, 1<<32|2) // and one with index 1
		}
		for _, l := range entries(t, i, 10, nil)[1:] {
			if l.Err != nil || len(l.Entries) != 2 {
				t.Fatalf("%+v", l)
			}
			for _, e := range l.Entries {
				if len(e.Error.ErrData) > cq.ErrDataMaxBytes {
					t.Errorf("%d bytes of detail", len(e.Error.ErrData))
				}
			}
		}
	}
	put(t, one, cq.SectLane, 1, 0, 1<<50)
	lanes := entries(t, i, 10, nil)
	wantErr(t, "wild tail", lanes[1].Err, cq.ErrCorrupt)
	if lanes[2].Err != nil {
		t.Error(lanes[2].Err)
	}
	must(t, i.Close())
	if _, err := i.Entries(1, nil); !errors.Is(err, cq.ErrClosed) {
		t.Error(err)
	}
}
