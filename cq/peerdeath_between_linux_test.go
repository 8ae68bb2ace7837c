package cq_test

import (
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// fullEvents makes an event queue without room for another event.
func fullEvents(t *testing.T, name string) *cq.EventQueue {
	t.Helper()
	e, err := cq.CreateAnonymousEvents(name, cq.EventOptions{Size: 2, Write: true})
	must(t, err)
	return e
}

// TestNamedDeathOutlivesItsSink: what one event queue had no room for is told to the one that
// replaces it, though each of the dead had the same lane; and nothing twice to the same.
func TestNamedDeathOutlivesItsSink(t *testing.T) {
	shmtest.Long(t)
	_, q := create(t, cq.Options{Size: 8, MaxLanes: 1})
	full, next, last := fullEvents(t, "full"), fullEvents(t, "next"), fullEvents(t, "last")
	must(t, q.BindEvents(full))
	_, err := full.Write(&cq.Event{Event: cq.EventUser})
	must(t, err)
	var pids []int
	for n := range uint64(3) {
		c := namedWriter(t, q, n+1)
		c.kill()
		pids = append(pids, c.Process.Pid)
		time.Sleep(150 * time.Millisecond) // it is found out, or else found later
	}
	must(t, q.BindEvents(next)) // has room for one at a time
	for i, pid := range pids {
		if p := wantDeath(t, next, q.FID(), cq.PeerWriter, pid); p.End != uint64(i+1) {
			t.Errorf("%+v", p)
		}
	}
	must(t, q.BindEvents(last))
	wantDeath(t, last, q.FID(), cq.PeerWriter, pids[2]) // nobody has had the lane since
	noNews(t, last)
	c := namedWriter(t, q, 4)
	c.kill()
	wantDeath(t, last, q.FID(), cq.PeerWriter, c.Process.Pid)
	must(t, q.BindEvents(nil))
	for _, e := range []*cq.EventQueue{full, next, last} {
		must(t, e.Close())
	}
}

// TestDeathsBetweenLooks: each of many that died in one lane while nobody looked is told, or
// counted with the first that is.
func TestDeathsBetweenLooks(t *testing.T) {
	shmtest.Long(t)
	_, q := create(t, cq.Options{Size: 32, MaxLanes: 1})
	e := eventsFor(t, q, cq.EventOptions{Size: 64})
	told := 0
	for _, many := range []int{1, 11, 2, 9} {
		look := cq.HoldDeaths(q)
		for n := range many {
			namedWriter(t, q, uint64(n+1)).kill()
			drain(t, q)
		}
		look()
		for sum := 0; sum < many; told++ {
			_, p := nextPeer(t, e)
			if sum += 1 + int(p.More); sum > many {
				t.Errorf("%d deaths of %d: %+v", sum, many, p)
			}
		}
		noNews(t, e)
	}
	if told < 4 {
		t.Errorf("%d events", told)
	}
}
