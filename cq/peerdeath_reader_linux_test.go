package cq_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestReaderDeathIsAnEvent: a writer's event queue tells of its reader's death, and of the one that
// takes the queue over.
func TestReaderDeathIsAnEvent(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	d := openDir(t)
	name := queueName(t)
	killedCreator(t, name, "1")
	w := attach(t, d, name)
	t.Cleanup(func() {
		if q, err := cq.Open(cq.Named(d, name), cq.Options{Existing: true}); err == nil {
			_ = q.Close()
		}
	})
	e, err := cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{Size: 2})
	must(t, err)
	t.Cleanup(func() { must(t, w.BindEvents(nil)); must(t, e.Close()) })
	must(t, w.BindEvents(e))
	wantErr(t, "a bound event queue", e.Close(), cq.ErrBusy)
	_, p := nextPeer(t, e) // it was dead before
	if p.Role != cq.PeerReader || p.Generation != 1 {
		t.Errorf("%+v", p)
	}
	post(t, w, 0, 3)
	for i := range 3 {
		c := startChild(t, "watched reader", envQueue+"="+name)
		if got := c.line(t); got != "reading" {
			t.Fatal(got)
		}
		ev, p := nextPeer(t, e)
		if ev.Event != cq.EventPeerNew || p.Role != cq.PeerReader || p.PID != c.Process.Pid {
			t.Errorf("%v %+v", ev.Event, p)
		}
		if i == 0 {
			_ = c.line(t) // it has read the first
		}
		c.kill()
		p = wantDeath(t, e, ev.FID, cq.PeerReader, c.Process.Pid)
		if p.First != 1 || p.End != 3 || p.Lane != w.Lane() {
			t.Errorf("%+v", p)
		}
	}
	noNews(t, e)
	q, err := cq.Open(cq.Named(d, name), cq.Options{Existing: true})
	must(t, err)
	if ev, p := nextPeer(t, e); ev.Event != cq.EventPeerNew || p.Generation != 5 {
		t.Errorf("%v %+v", ev.Event, p)
	}
	own, err := q.Writer()
	must(t, err)
	wantErr(t, "own", own.BindEvents(e), cq.ErrInvalid)
	must(t, errors.Join(own.Close(), q.Detach()))
	noNews(t, e)
}

// TestOthersReaderDeathIsAnEvent: likewise with a reader of another user, who is not replaced.
func TestOthersReaderDeathIsAnEvent(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	c := startOther(t, "other reader")
	w, err := cq.Attach(soon(t), cq.Over(c.conn),
		cq.WriterOptions{Trust: cq.CrossUser, Allow: bothUsers()})
	must(t, err)
	_, e := createEvents(t, cq.EventOptions{Size: 2})
	must(t, w.BindEvents(e))
	if got := c.line(t); got != "accepted" {
		t.Fatal(got)
	}
	must(t, c.conn.Close())
	post(t, w, 0, 3)
	must(t, c.Process.Signal(syscall.SIGSTOP))
	noNews(t, e)
	c.kill()
	_, p := nextPeer(t, e)
	if p.Role != cq.PeerReader || p.PID != c.Process.Pid || p.End-p.First != 3 {
		t.Errorf("%+v", p)
	}
	noNews(t, e)
	wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrPeerGone)
	must(t, w.Close())
	wantErr(t, "closed", w.BindEvents(e), cq.ErrClosed)
}

// TestSuccessorIsToldOnce: a reader that reports and dies leaves its event queue to a successor,
// which reports no death again; with an event queue of its own it does.
func TestSuccessorIsToldOnce(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	d, name := openDir(t), queueName(t)
	q, err := cq.Create(cq.Named(d, name), cq.Options{Size: 8, Lifetime: cq.Persistent})
	must(t, err)
	e, err := cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{Lifetime: cq.Persistent})
	must(t, err)
	must(t, errors.Join(q.Detach(), e.Detach()))
	reader := startChild(t, "death reader", envQueue+"="+name)
	if got := reader.line(t); got != "bound" {
		t.Fatal(got)
	}
	c := startChild(t, "poster", envQueue+"="+name, envCount+"=1")
	_ = c.line(t)
	c.kill()
	if got := reader.line(t); got != "told" {
		t.Fatal(got)
	}
	reader.kill()
	q, err = cq.Open(cq.Named(d, name), cq.Options{Existing: true})
	must(t, err)
	e, err = cq.OpenEvents(cq.Named(d, "events"), cq.EventOptions{Existing: true})
	must(t, err)
	must(t, q.BindEvents(e))
	fid := q.FID()
	fid.Generation-- // of the reader that reported
	wantDeath(t, e, fid, cq.PeerWriter, c.Process.Pid)
	noNews(t, e)
	own, err := cq.CreateEvents(cq.Named(d, "own"), cq.EventOptions{})
	must(t, err)
	must(t, q.BindEvents(own))
	wantDeath(t, own, q.FID(), cq.PeerWriter, c.Process.Pid)
	must(t, errors.Join(q.Close(), e.Close(), own.Close()))
}

// TestDeathsUnderFire: writers at full speed are killed at random while the queue is read by every
// kind of wait; every one has its event, and after it what it had published was read.
func TestDeathsUnderFire(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	const rounds, writers = 4, 2
	_, q := create(t, cq.Options{Size: 64, Shared: true})
	e := eventsFor(t, q, cq.EventOptions{Size: 4})
	read := map[int]uint64{} // by lane: how far
	buf := make([]cq.Tagged, 32)
	take := func(wait time.Duration) {
		n, err := sread(q, buf, wait)
		if err != nil && !errors.Is(err, cq.ErrTimedOut) {
			t.Fatal(err)
		}
		for _, m := range buf[:n] {
			lane := int(m.Context)
			if m.Tag != read[lane] {
				t.Fatalf("lane %d: entry %d after %d", lane, m.Tag, read[lane])
			}
			read[lane]++
		}
	}
	rnd := rand.New(rand.NewPCG(5, 1))
	for range rounds {
		pids := map[int]bool{}
		for range writers {
			c := startChild(t, "writer", envQueue+"="+q.Name())
			_ = c.line(t)
			pids[c.Process.Pid] = true
			time.AfterFunc(time.Duration(rnd.IntN(30))*time.Millisecond,
				func() { _ = c.Process.Kill() })
		}
		ev := cq.Event{Payload: make([]byte, 0, 256)}
		for end := time.Now().Add(time.Minute); len(pids) > 0; {
			if time.Now().After(end) {
				t.Fatalf("no news of %v", pids)
			}
			take(time.Millisecond)
			if _, err := e.Read(&ev, 0); err == cq.ErrWouldBlock {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			p, err := cq.ParsePeerEntry(ev.Payload)
			must(t, err)
			if !pids[p.PID] {
				t.Errorf("a second event, or a wrong one: %+v", p)
			}
			delete(pids, p.PID)
			for tries := 0; read[p.Lane] < p.End; tries++ {
				if tries > 1000 {
					t.Fatalf("lane %d: %d of %d can be read after %+v", p.Lane, read[p.Lane], p.End, p)
				}
				take(0)
			}
		}
	}
	noNews(t, e)
}

func init() { roles["lane holder"] = childLaneHolder }

// childLaneHolder begins to collect a queue and gets no further.
func childLaneHolder() {
	d, err := shm.OpenDir("")
	need(err)
	_, err = collect.HoldLanes(d, os.Getenv(envQueue))
	need(err)
	say("held")
	select {}
}

// TestDeathOutlivesCollectors: collectors that have the lanes of a queue, and give up, or die over
// it, hide nobody who died there, and nobody takes them for writers.
func TestDeathOutlivesCollectors(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	for name, meet := range map[string]func(t *testing.T, d *shm.Dir, name string){
		"gives up": func(t *testing.T, d *shm.Dir, name string) {
			release, err := collect.HoldLanes(d, name)
			must(t, err)
			release()
		},
		"dies": func(t *testing.T, _ *shm.Dir, name string) {
			c := startChild(t, "lane holder", envQueue+"="+name)
			if got := c.line(t); got != "held" {
				t.Fatal(got)
			}
			c.kill()
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, name := openDir(t), queueName(t)
			q, err := cq.Create(cq.Named(d, name), cq.Options{Size: 8, Lifetime: cq.Persistent})
			must(t, err)
			c := namedWriter(t, q, 1)
			must(t, q.Detach())
			c.kill()
			for range 2 {
				meet(t, d, name)
			}
			q, err = cq.Open(cq.Named(d, name), cq.Options{Existing: true})
			must(t, err)
			e := eventsFor(t, q, cq.EventOptions{})
			wantDeath(t, e, q.FID(), cq.PeerWriter, c.Process.Pid)
			noNews(t, e)
			if got := drain(t, q); len(got) != 1 {
				t.Errorf("read %v", got)
			}
			must(t, errors.Join(q.BindEvents(nil), q.Close()))
		})
	}
}
