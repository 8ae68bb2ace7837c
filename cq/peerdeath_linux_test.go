package cq_test

import (
	"errors"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// eventsFor makes an event queue beside a queue that reports to it.
func eventsFor(t testing.TB, q *cq.Queue, o cq.EventOptions) *cq.EventQueue {
	t.Helper()
	e, err := cq.CreateEvents(openDir(t), "events-"+queueName(t)[:min(40, len(queueName(t)))], o)
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	must(t, q.BindEvents(e))
	t.Cleanup(func() { must(t, q.BindEvents(nil)) })
	return e
}

// nextPeer waits for an event about a peer.
func nextPeer(t testing.TB, e *cq.EventQueue) (cq.Event, cq.PeerEntry) {
	t.Helper()
	ev := cq.Event{Payload: make([]byte, 0, 256)}
	if _, err := e.ReadContext(soon(t), &ev, cq.ReadOptions{}); err != nil {
		t.Fatalf("no event: %v", err)
	}
	p, err := cq.ParsePeerEntry(ev.Payload)
	must(t, err)
	return ev, p
}

// wantDeath waits for the death of a process in a role.
func wantDeath(t testing.TB, e *cq.EventQueue, fid cq.FID, role cq.PeerRole,
	pid int) cq.PeerEntry {
	t.Helper()
	ev, p := nextPeer(t, e)
	if ev.Event != cq.EventPeerDeath || ev.FID != fid || ev.Data != uint64(p.Lane) {
		t.Errorf("event %+v", ev)
	}
	if p.Role != role || p.PID != pid || p.Object == (shm.UUID{}) || p.Again || p.More != 0 {
		t.Errorf("%+v, want the death of %v %d", p, role, pid)
	}
	return p
}

// noNews lets several looks go by in which nothing comes.
func noNews(t testing.TB, e *cq.EventQueue) {
	t.Helper()
	ev := cq.Event{Payload: make([]byte, 0, 256)}
	if _, err := eqSread(e, &ev, 350*time.Millisecond); !errors.Is(err, cq.ErrTimedOut) {
		p, _ := cq.ParsePeerEntry(ev.Payload)
		t.Errorf("%v, %v, %+v", err, ev.Event, p)
	}
}

// writerOf starts a process that has posted contexts 0 to n-1 in a queue of either kind, and
// returns its number as it knows it.
func writerOf(t *testing.T, q *cq.Queue, kind string, n uint64) (c *child, pid int) {
	t.Helper()
	var j *joiner
	switch kind {
	case "without a name":
		j = startJoiner(t, q)
	case "other user":
		j = startWriterOther(t, q)
	case "other PID namespace":
		if n != 1 {
			t.Fatal("it posts one")
		}
		return mortal(t, q.Name(), true), 1
	default:
		t.Fatal(kind)
	}
	j.post(t, 0, n)
	return j.child, j.Process.Pid
}

// TestWriterDeathIsAnEvent: the reader's event queue gets one event for each writer that died,
// whatever the reader does meanwhile, and what the writer had published can be read then. One that
// detaches is none.
func TestWriterDeathIsAnEvent(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	for _, kind := range []string{"named", "without a name", "other user", "other PID namespace"} {
		t.Run(kind, func(t *testing.T) {
			o := cq.Options{Size: 8}
			var q *cq.Queue
			switch kind {
			case "without a name":
				q = anonymous(t, o)
			case "other user":
				q = anonymousOthers(t, o)
			default:
				_, q = create(t, o)
			}
			e := eventsFor(t, q, cq.EventOptions{Size: 4})
			begin := uint64(0)
			for range 2 {
				var c *child
				var pid int
				if kind == "named" {
					c, pid = namedWriter(t, q, begin+1), 0
					pid = c.Process.Pid
				} else {
					c, pid = writerOf(t, q, kind, 1)
				}
				if begin == 0 {
					noNews(t, e) // it lives, and nobody reads
				}
				c.kill()
				p := wantDeath(t, e, q.FID(), cq.PeerWriter, pid)
				if p.Lane != 1 || p.End != p.First+1 || p.First != begin {
					t.Errorf("%+v, want one entry from %d on", p, begin)
				}
				if got := drain(t, q); len(got) != 1 {
					t.Errorf("read %v after the event", got)
				}
				for begin = p.End; q.Stats().Retired < begin && kind == "other user"; {
					_ = drain(t, q)
				}
				if kind == "other PID namespace" {
					break // its second writer would begin at 1, and post nothing
				}
			}
			noNews(t, e)
		})
	}
}

// namedWriter starts a process that posts in a named queue up to an index.
func namedWriter(t *testing.T, q *cq.Queue, until uint64) *child {
	t.Helper()
	c := startChild(t, "poster", envQueue+"="+q.Name(), envCount+"="+uintText(until))
	if got := c.line(t); got != "posted" {
		t.Fatal(got)
	}
	return c
}

// TestDetachIsNoDeath: nor is a process that ends after it has closed its writer.
func TestDetachIsNoDeath(t *testing.T) {
	t.Parallel()
	_, q := create(t, cq.Options{Size: 8})
	e := eventsFor(t, q, cq.EventOptions{Size: 4})
	c := namedWriter(t, q, 3)
	_ = c.stop(t)
	c = namedWriter(t, q, 5)
	c.kill()
	if p := wantDeath(t, e, q.FID(), cq.PeerWriter, c.Process.Pid); p.First != 3 || p.End != 5 {
		t.Errorf("%+v", p)
	}
	noNews(t, e)
}

// TestDeathsInOneLane: whoever takes a lane over leaves a record of the one it found dead, so that
// all are counted, also if nobody looked for a while.
func TestDeathsInOneLane(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	_, q := create(t, cq.Options{Size: 16, MaxLanes: 1})
	e := eventsFor(t, q, cq.EventOptions{Size: 32})
	var pids []int
	for i := range uint64(7) {
		c := namedWriter(t, q, i+1)
		pids = append(pids, c.Process.Pid)
		c.kill()
	}
	last := uint64(0)
	for i, pid := range pids {
		p := wantDeath(t, e, q.FID(), cq.PeerWriter, pid)
		if own := p.First == uint64(i) && p.End == uint64(i)+1; p.Generation <= last ||
			!own && (i >= 4 || p.First != p.End) { // the lane knows the last four
			t.Errorf("%d: %+v after generation %d", i, p, last)
		}
		last = p.Generation
	}
	noNews(t, e)
}

// TestDeathWaitsForRoom: an event queue that is full loses no death, and reports it when there is
// room, in order.
func TestDeathWaitsForRoom(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	_, q := create(t, cq.Options{Size: 8})
	e := eventsFor(t, q, cq.EventOptions{Size: 2, Write: true})
	var filler cq.Event
	_, err := e.Write(&cq.Event{Event: cq.EventUser})
	must(t, err)
	_, err = e.Write(&cq.Event{Event: cq.EventUser})
	wantErr(t, "beside the room for an overrun", err, cq.ErrFull)
	c := startChild(t, "writer", envQueue+"="+q.Name(), envCount+"=1", envLanes+"=5")
	for range 5 {
		_ = c.line(t)
	}
	eventually(t, "five entries", func() bool { return len(drain(t, q)) > 0 && q.Stats().Read == 5 })
	c.kill()
	time.Sleep(250 * time.Millisecond)
	if _, err := e.Read(&filler, 0); err != nil || filler.Event != cq.EventUser {
		t.Fatal(err, filler)
	}
	seen := map[int]bool{}
	for range 5 {
		seen[wantDeath(t, e, q.FID(), cq.PeerWriter, c.Process.Pid).Lane] = true
	}
	if len(seen) != 5 {
		t.Errorf("lanes %v", seen)
	}
	noNews(t, e)
}

// TestDeathBeforeBinding: the death of a lane's last writer is news to whoever binds later.
func TestDeathBeforeBinding(t *testing.T) {
	t.Parallel()
	_, q := create(t, cq.Options{Size: 8})
	namedWriter(t, q, 1).kill()
	c := namedWriter(t, q, 2)
	c.kill()
	e := eventsFor(t, q, cq.EventOptions{})
	wantDeath(t, e, q.FID(), cq.PeerWriter, c.Process.Pid)
	must(t, q.BindEvents(nil))
	must(t, q.BindEvents(e))
	noNews(t, e) // it was told already
	must(t, q.BindEvents(nil))
	other, err := cq.CreateEvents(openDir(t), "other", cq.EventOptions{DataMaxBytes: 8})
	must(t, err)
	must(t, q.BindEvents(other))
	var ev cq.Event
	if _, err := other.ReadContext(soon(t), &ev, cq.ReadOptions{}); err != nil ||
		ev.Event != cq.EventPeerDeath ||
		len(ev.Payload) > 0 || ev.Data != 1 {
		t.Errorf("%v, %+v in a queue that has no room for it", err, ev)
	}
	must(t, errors.Join(q.BindEvents(nil), other.Close()))
}

// TestDeathOfEventWriters: an event queue can report its own writers, to itself, and a queue can
// report to the event queue of another process.
func TestDeathOfEventWriters(t *testing.T) {
	t.Parallel()
	d, e := createEvents(t, cq.EventOptions{Size: 8})
	must(t, e.BindEvents(e))
	w := attachEvents(t, d, e.Name())
	q, err := cq.Create(d, "q", cq.Options{Size: 8})
	must(t, err)
	must(t, q.BindEvents(w))
	c := startChild(t, "event poster", envQueue+"="+e.Name())
	if got := c.line(t); got != "posted" {
		t.Fatal(got)
	}
	var ev cq.Event
	if _, err := e.ReadContext(soon(t), &ev, cq.ReadOptions{}); err != nil ||
		ev.Event != cq.EventUser {
		t.Fatal(err, ev)
	}
	c.kill()
	if p := wantDeath(t, e, e.FID(), cq.PeerWriter, c.Process.Pid); p.Lane != 2 || p.End != 1 {
		t.Errorf("%+v", p)
	}
	c = namedWriter(t, q, 1)
	c.kill()
	wantDeath(t, e, q.FID(), cq.PeerWriter, c.Process.Pid)
	must(t, q.Close())
	must(t, e.BindEvents(nil))
}
