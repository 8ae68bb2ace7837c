package ctl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func openDir(t testing.TB) *shm.Dir {
	t.Helper()
	return shmtest.Have(shm.OpenDir("")).In(t)
}

var must = shmtest.Must

var wantErr = shmtest.WantErr

// queue makes a queue with one writer, both closed when the test ends.
func queue(t testing.TB, d *shm.Dir, name string, o cq.Options) (*cq.Queue, *cq.Writer) {
	t.Helper()
	q := shmtest.Have(cq.Create(cq.Named(d, name), o)).In(t)
	w := shmtest.Have(cq.Attach(t.Context(), cq.Named(d, name), cq.WriterOptions{})).In(t)
	return q, w
}

func TestShowDescribes(t *testing.T) {
	d := openDir(t)
	_, w := queue(t, d, "described", cq.Options{Size: 4, MaxLanes: 2, Format: cq.FormatData,
		Overrun: cq.OverrunQueue, Lifetime: cq.Persistent, Wait: cq.WaitFD, WritersPay: true})
	must(t, w.Post(&cq.Entry{}))
	q := shmtest.Got(ctl.Show(d, "described")).Or(t)
	for field, pair := range map[string][2]string{
		"format": {*q.Format, "data"}, "policy": {*q.OverrunPolicy, "overrun"},
		"lifetime": {*q.Lifetime, "persistent"}, "wait": {*q.WaitObject, "fd"},
		"paid by": {*q.OrderPaidBy, "writers"},
		"mode":    {*q.Mode, "0600"}, "order": {*q.Lanes[1].Order, "seq-cst"},
		"path": {q.Path, filepath.Join(d.Path(), "described")},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %q, want %q", field, pair[0], pair[1])
		}
	}
	if *q.UID != uint32(os.Geteuid()) || *q.Capacity != 4 || *q.MaxLanes != 2 ||
		*q.Depth != 1 || *q.SlotBytes != 64 || q.PerSecond != nil {
		t.Errorf("%+v", q)
	}
	m := ctl.NewMonitor(d)
	defer m.Close()
	list := shmtest.Got(m.List()).Or(t)
	if len(list) != 1 || *list[0].UUID != *q.UUID {
		t.Errorf("listed: %+v", list)
	}
}

func TestMonitorRates(t *testing.T) {
	d := openDir(t)
	q, w := queue(t, d, "rates", cq.Options{Size: 64})
	m := ctl.NewMonitor(d)
	defer m.Close()
	first, err := m.Show("rates")
	must(t, err)
	if first.PerSecond != nil {
		t.Errorf("rates at the first look: %+v", first.PerSecond)
	}
	for range 10 {
		must(t, w.Post(&cq.Entry{}))
	}
	shmtest.Got(cq.Read(q, make([]cq.Context, 4))).Or(t)
	now := shmtest.Got(m.Show("rates")).Or(t)
	r := now.PerSecond
	if r == nil || r.Posted <= 0 || r.Read <= 0 || r.Posted < 2.4*r.Read || r.Posted > 2.6*r.Read {
		t.Errorf("10 posted and 4 read: %+v", r)
	}
	if now, err = m.Show("rates"); err != nil || now.PerSecond.Posted != 0 {
		t.Errorf("idle: %+v, %v", now.PerSecond, err)
	}
}

// TestListWhileQueuesComeAndGo may find a queue or not, or what is left of it; nothing else.
func TestListWhileQueuesComeAndGo(t *testing.T) {
	d := openDir(t)
	done := make(chan error, 1)
	go func() {
		var err error
		for range 200 {
			q, e := cq.Create(cq.Named(d, "fleeting"), cq.Options{Size: 4, MaxLanes: 1})
			if err = e; err != nil {
				break
			}
			w, e := cq.Attach(t.Context(), cq.Named(d, "fleeting"), cq.WriterOptions{})
			if err = e; err != nil {
				break
			}
			if err = errors.Join(q.Close(), w.Close()); err != nil {
				break
			}
		}
		done <- err
	}()
	m := ctl.NewMonitor(d)
	defer m.Close()
	for {
		select {
		case err := <-done:
			must(t, err)
			return
		default:
		}
		list := shmtest.Got(m.List()).Or(t)
		for _, q := range list {
			if q.Name != "fleeting" || q.Error != nil && q.Error.Code != ctl.CodeNotFound {
				t.Fatalf("%s: %+v", q.Name, q.Error)
			}
			for _, l := range q.Lanes {
				if l.Error != nil {
					t.Fatalf("lane %d: %+v", l.Row, l.Error)
				}
			}
		}
	}
}

// entries returns the last n entries of one lane.
func entries(t testing.TB, d *shm.Dir, n, row int) ctl.LaneTail {
	t.Helper()
	m := ctl.NewMonitor(d)
	defer m.Close()
	got := shmtest.Got(m.Entries("q", n)).Or(t)
	return got.Lanes[row]
}

func TestEntriesOfEveryState(t *testing.T) {
	d := ownDir(t)
	q, w := queue(t, d, "q", cq.Options{Size: 8, MaxLanes: 2})
	if got := entries(t, d, 10, 1); len(got.Entries) != 0 {
		t.Fatalf("%+v", got)
	}
	post(t, w, 0, 4)
	if n, err := cq.Read(q, make([]cq.Context, 2)); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	must(t, w.PostError(&cq.ErrorEntry{Context: 77, Err: cq.ETrunc, ProvErrno: -3, OverrunBytes: 9,
		ErrData: []byte("why"), Flags: cq.FlagRecv, Src: cq.From(3), Buf: shm.MakeRef(5, 64)}))
	es := shmtest.Got(q.Peek(1)).Or(t)
	l := entries(t, d, 10, 1)
	if l.Row != 1 || l.Own || *l.Tail != 5 || len(l.Entries) != 5 || *l.PID != os.Getpid() {
		t.Fatalf("%+v", l)
	}
	for k, want := range []string{ctl.EntryReleased, ctl.EntryReleased, ctl.EntryPeeked,
		ctl.EntryWaiting, ctl.EntryWaiting} {
		e := l.Entries[k]
		if e.Index != uint64(k) || e.State != want || (e.Failure != nil) != (k == 4) ||
			k < 4 && *e.Context != uint64(k) {
			t.Errorf("entry %d: %+v, want %v", k, e, want)
		}
	}
	e := l.Entries[4]
	if f := e.Failure; f.Errno != int32(cq.ETrunc) || *f.Name != "ETRUNC" || f.ProvErrno != -3 ||
		f.OverrunBytes != 9 || f.Data != hexOf("why") {
		t.Errorf("%+v", f)
	}
	if *e.Context != 77 || !slices.Equal(e.Flags, []string{"RECV"}) || *e.Src != 3 ||
		*e.Buf != (ctl.Place{Region: 5, Offset: 64}) {
		t.Errorf("%+v", e)
	}
	must(t, q.Release(len(es)))
	if l = entries(t, d, 2, 1); len(l.Entries) != 2 || l.Entries[0].Index != 3 {
		t.Errorf("the last two: %+v", l)
	}
	for _, n := range []int{0, -1} {
		if l = entries(t, d, n, 1); len(l.Entries) != 0 {
			t.Errorf("none: %+v", l)
		}
	}
	// Entries over which others were published are gone.
	_, _ = cq.Read(q, make([]cq.Context, 8))
	must(t, q.ReadErr(&cq.ErrorEntry{}))
	post(t, w, 5, 12)
	if l = entries(t, d, 100, 1); *l.Tail != 12 || len(l.Entries) != 8 ||
		l.Entries[0].Index != 4 || l.Entries[0].Failure == nil || *l.Entries[7].Context != 11 {
		t.Errorf("%+v", l)
	}
	own := shmtest.Got(q.Writer()).Or(t)
	must(t, own.Post(&cq.Entry{Meta: cq.MetaNoContext | cq.MetaSolicited}))
	must(t, own.Close())
	if l = entries(t, d, 100, 0); !l.Own || len(l.Entries) != 1 || l.Entries[0].Context != nil ||
		!l.Entries[0].Solicited {
		t.Errorf("own lane: %+v", l)
	}
}

func hexOf(text string) string { return fmt.Sprintf("%x", text) }

// TestMonitorEntries: after the first look only what is new is shown, and what was not shown is
// counted; another queue of the name begins again.
func TestMonitorEntries(t *testing.T) {
	d := ownDir(t)
	m := ctl.NewMonitor(d)
	defer m.Close()
	next := func(n int) ctl.Tail {
		t.Helper()
		got := shmtest.Got(m.Entries("q", n)).Or(t)
		return got
	}
	for range 2 {
		q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{Size: 8})).Or(t)
		w := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "q"), cq.WriterOptions{})).Or(t)
		post(t, w, 0, 4)
		next(2)
		if got := next(2); len(got.Lanes) != 0 {
			t.Errorf("nothing is new: %+v", got)
		}
		post(t, w, 4, 7)
		if got := next(2).Lanes; len(got) != 1 || got[0].Row != 1 || len(got[0].Entries) != 2 ||
			got[0].Entries[0].Index != 5 || got[0].Missed != 1 {
			t.Errorf("%+v", got)
		}
		must(t, errors.Join(w.Close(), q.Close()))
	}
	_, err := m.Entries("q", 2)
	wantErr(t, "destroyed", err, fs.ErrNotExist)
}

// TestEntriesOfEvents: what an event queue holds is shown as events.
func TestEntriesOfEvents(t *testing.T) {
	d := ownDir(t)
	e := shmtest.Have(cq.CreateEvents(cq.Named(d, "q"), cq.EventOptions{Size: 8, Write: true})).In(t)
	fid := cq.FID{Kind: cq.FIDEndpoint, ID: 5, Generation: 2}
	shmtest.Got(e.Write(&cq.Event{Event: cq.EventShutdown, FID: fid, Context: 3, Data: 4,
		Payload: []byte("gone")})).Or(t)
	_, err := e.WriteErr(&cq.EventError{FID: fid, Context: 6, Err: cq.ETrunc, ErrData: []byte("why")})
	must(t, err)
	es := entries(t, d, 10, 0).Entries
	about := ctl.FID{Kind: "endpoint", ID: 5, Generation: 2}
	if len(es) != 2 || *es[0].Event.FID != about || *es[1].Event.FID != about {
		t.Fatalf("%+v", es)
	}
	if ev := es[0]; *ev.Event.Name != "SHUTDOWN" || *ev.Context != 3 || ev.Data != 4 ||
		ev.Len != 4 || ev.Event.Payload != hexOf("gone") || ev.Failure != nil {
		t.Errorf("%+v", ev)
	}
	if ev := es[1]; *ev.Context != 6 || ev.Failure.Errno != int32(cq.ETrunc) ||
		ev.Failure.Data != hexOf("why") || ev.Event.Name != nil {
		t.Errorf("%+v", ev)
	}
	if n, err := e.Read(&cq.Event{Payload: make([]byte, 0, 8)}, 0); err != nil || n == 0 {
		t.Errorf("looking took it: %d, %v", n, err)
	}
	must(t, second(e.ReadErr(&cq.EventError{}, 0)))
}

func second[T any](_ T, err error) error { return err }

// TestEntriesWhileBusy: a queue changes after one of its entries was copied. What was read since is
// not said to wait, since its copy may be torn. What was overwritten is left out.
func TestEntriesWhileBusy(t *testing.T) {
	const size = 4
	for name, c := range map[string]struct {
		reads, posts int
		want         []string
	}{
		"nothing": {want: []string{ctl.EntryWaiting, ctl.EntryWaiting, ctl.EntryWaiting,
			ctl.EntryWaiting}},
		"read": {reads: 2, want: []string{ctl.EntryReleased, ctl.EntryReleased, ctl.EntryWaiting,
			ctl.EntryWaiting}},
		"overwritten": {reads: 2, posts: 2, want: []string{ctl.EntryWaiting, ctl.EntryWaiting}},
	} {
		t.Run(name, func(t *testing.T) {
			d := ownDir(t)
			q, w := queue(t, d, "q", cq.Options{Size: size})
			post(t, w, 0, size)
			m := ctl.NewMonitor(d)
			defer m.Close()
			m.OnCopied(sync.OnceFunc(func() {
				if c.reads > 0 {
					shmtest.Got(cq.Read(q, make([]cq.Context, c.reads))).Or(t)
				}
				post(t, w, size, size+uint64(c.posts))
			}))
			got := shmtest.Got(m.Entries("q", size)).Or(t)
			var states []string
			for _, e := range got.Lanes[1].Entries {
				states = append(states, e.State)
				if *e.Context != e.Index {
					t.Errorf("%+v", e)
				}
			}
			if !slices.Equal(states, c.want) {
				t.Errorf("%q, want %q", states, c.want)
			}
		})
	}
}

// TestEntriesWild has a peer that puts anything at all where entries should be.
func TestEntriesWild(t *testing.T) {
	d, _, one, two := bareQueue(t)
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		for id, o := range map[uint32]*shm.Object{1: one, 2: two} {
			for _, k := range []shm.SectionKind{kind.SectSlots, kind.SectErrors} {
				for off := 0; off < 4*64; off += 8 {
					put(t, o, k, id, off, rnd.Uint64()>>rnd.IntN(64))
				}
			}
			put(t, o, kind.SectLane, id, 0, 2)
			put(t, o, kind.SectSlots, id, 56, 2)          // an error entry with index 0
			put(t, o, kind.SectSlots, id, 64+56, 1<<32|2) // and one with index 1
		}
		for row := 1; row <= 2; row++ {
			l := entries(t, d, 10, row)
			if l.Error != nil || len(l.Entries) != 2 {
				t.Fatalf("%+v", l)
			}
			for _, e := range l.Entries {
				if len(e.Failure.Data) > 2*cq.ErrDataMaxBytes {
					t.Errorf("%d digits of detail", len(e.Failure.Data))
				}
			}
		}
	}
	put(t, one, kind.SectLane, 1, 0, 1<<50)
	wantErr(t, "wild tail", entries(t, d, 10, 1).Error, cq.ErrCorrupt)
	if l := entries(t, d, 10, 2); l.Error != nil {
		t.Error(l.Error)
	}
}
