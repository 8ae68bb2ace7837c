package cq_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestKilledWhileItReports: a reader that dies at any moment while it reports the deaths of its
// writers leaves none out: its successor, with the same event queue, finds each there once, or
// twice and then marked.
func TestKilledWhileItReports(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	const lanes = 5
	rnd := rand.New(rand.NewPCG(7, 1))
	d, name := openDir(t), queueName(t)
	for range 4 {
		q, err := cq.Create(d, name, cq.Options{Size: 8, Lifetime: cq.Persistent})
		must(t, err)
		e, err := cq.CreateEvents(d, "events", cq.EventOptions{Lifetime: cq.Persistent})
		must(t, err)
		must(t, errors.Join(q.Detach(), e.Detach()))
		reader := startChild(t, "mourner", envQueue+"="+name, envKind+"=blind")
		if got := reader.line(t); got != "bound" {
			t.Fatal(got)
		}
		c := startChild(t, "writer", envQueue+"="+name, envCount+"=1", envLanes+"=5")
		for range lanes {
			_ = c.line(t)
		}
		c.kill()
		time.Sleep(time.Duration(rnd.IntN(250_000)) * time.Microsecond)
		reader.kill()
		q, err = cq.Adopt(d, name, cq.Options{})
		must(t, err)
		e, err = cq.AdoptEvents(d, "events", cq.EventOptions{})
		must(t, err)
		must(t, q.BindEvents(e))
		told := map[int]int{}
		for len(told) < lanes {
			_, p := nextPeer(t, e)
			if told[p.Lane]++; p.PID != c.Process.Pid || told[p.Lane] > 1 && !p.Again {
				t.Errorf("event %d of lane %d: %+v", told[p.Lane], p.Lane, p)
			}
		}
		for ev := (cq.Event{Payload: make([]byte, 0, 256)}); ; {
			if _, err := eqSread(e, &ev, 350*time.Millisecond); errors.Is(err, cq.ErrTimedOut) {
				break
			}
			p, err := cq.ParsePeerEntry(ev.Payload)
			if err != nil || !p.Again || told[p.Lane] > 1 {
				t.Errorf("one more: %+v, %v", p, err)
			}
			told[p.Lane]++
		}
		if n := len(drain(t, q)); n > lanes {
			t.Errorf("%d entries of %d writers", n, lanes)
		}
		must(t, errors.Join(q.Close(), e.Close()))
	}
}

// TestOthersReaderClosesFirst: a reader of another user that closed and ended is no death.
func TestOthersReaderClosesFirst(t *testing.T) {
	t.Parallel()
	c := startOther(t, "other reader")
	w, err := cq.AttachConn(soon(t), c.conn,
		cq.WriterOptions{Trust: cq.CrossUser, Allow: bothUsers()})
	must(t, err)
	_ = c.line(t)
	must(t, c.conn.Close())
	_, e := createEvents(t, cq.EventOptions{})
	must(t, w.BindEvents(e))
	_, err = c.in.Write([]byte("close\n"))
	must(t, err)
	if got := c.line(t); got != "closed" {
		t.Fatal(got)
	}
	c.kill()
	noNews(t, e)
	must(t, w.Close())
}
