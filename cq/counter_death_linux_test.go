package cq_test

import (
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// deathsOf makes an event queue and binds it.
func deathsOf(t *testing.T, name string, bind func(cq.EventSink) error) *cq.EventQueue {
	t.Helper()
	e, err := cq.CreateAnonymousEvents(name, cq.EventOptions{Size: 16, Write: true})
	must(t, err)
	must(t, bind(e))
	t.Cleanup(func() { must(t, e.Close()) })
	t.Cleanup(func() { must(t, bind(nil)) })
	return e
}

// TestCounterDeathIsAnEvent: every handle that is bound is told once of each process that is killed
// while it has the counter open, and after what that had added. One that is stopped is not dead,
// nor one that closes.
func TestCounterDeathIsAnEvent(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	d, one, base := named3(t, cq.CounterOptions{Lifetime: cq.Persistent})
	two, err := cq.OpenCounter(d, base+"-3", cq.CounterOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, one.Close())
		must(t, two.Close())
		must(t, cq.Remove(d, base+"-3"))
	})
	early := startCounterPeer(t, base, false)
	early.kill()
	es := []*cq.EventQueue{deathsOf(t, "one", one.BindEvents), deathsOf(t, "two", two.BindEvents)}
	stopped := startCounterPeer(t, base, false)
	must(t, stopped.Process.Signal(syscall.SIGSTOP))
	seats := map[int]uint64{}
	for i, newPIDs := range []bool{false, false, true} {
		p := startCounterPeer(t, base, newPIDs)
		p.does(t, "add", 1, "add: <nil>")
		p.kill()
		pid := p.Process.Pid
		if newPIDs {
			pid = 1
		}
		for _, e := range es {
			entry := wantDeath(t, e, one.FID(), cq.PeerUser, pid)
			if before, again := seats[entry.Lane]; again && before == entry.Generation && e == es[0] {
				t.Errorf("told twice: %+v", entry)
			}
			seats[entry.Lane] = entry.Generation
		}
		wantCounter(t, one, uint64(i)+1, 0)
	}
	_ = startCounterPeer(t, base, false).stop(t) // which closes
	for _, e := range es {
		noNews(t, e)
	}
	must(t, stopped.Process.Signal(syscall.SIGCONT))
	stopped.does(t, "add", 1, "add: <nil>")
	stopped.kill()
	for _, e := range es {
		wantDeath(t, e, one.FID(), cq.PeerUser, stopped.Process.Pid)
		noNews(t, e)
	}
}

// TestCounterDeathOutlivesItsSink: what one event queue had no room for goes to the next.
func TestCounterDeathOutlivesItsSink(t *testing.T) {
	t.Parallel()
	_, c, base := named3(t, cq.CounterOptions{})
	t.Cleanup(func() { must(t, c.Close()) })
	full, err := cq.CreateAnonymousEvents("full", cq.EventOptions{Size: 1, Write: true})
	must(t, err)
	must(t, c.BindEvents(full))
	_, err = full.Write(&cq.Event{Event: cq.EventUser})
	must(t, err)
	var pids []int
	for range 3 {
		p := startCounterPeer(t, base, false)
		p.kill()
		pids = append(pids, p.Process.Pid)
	}
	next := deathsOf(t, "next", c.BindEvents)
	told := map[int]int{}
	for n := uint64(0); n < 3; {
		_, p := nextPeer(t, next)
		told[p.PID]++
		n += 1 + p.More // several may have died in the seat between two looks
	}
	if told[pids[2]] != 1 {
		t.Errorf("told %v of %v", told, pids)
	}
	noNews(t, next)
	must(t, full.Close())
}
