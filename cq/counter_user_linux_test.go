package cq_test

import (
	"os"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/shm"
)

// TestCounterUserIsNamed: whoever keeps a counter from being removed is named, and not who made it
// or who sat in the same place and died.
func TestCounterUserIsNamed(t *testing.T) {
	t.Parallel()
	d, c, name := named3(t, cq.CounterOptions{Lifetime: cq.Persistent})
	name, base := name+"-3", name // as the child finds it
	wantUser := func(pid int) {
		t.Helper()
		r, err := collect.Assess(d, name, collect.Options{Waiting: true})
		if err != nil || r.Fate != collect.Living || r.Owner.PID != pid {
			t.Errorf("%v, %+v, want process %d", err, r, pid)
		}
	}
	wantUser(os.Getpid())
	first := startCounterPeer(t, base, false)
	must(t, c.Close())
	wantUser(first.Process.Pid)
	first.kill()
	if r, err := collect.Assess(d, name, collect.Options{Waiting: true}); err != nil ||
		r.Fate != collect.Garbage {
		t.Errorf("%+v, %v", r, err)
	}
	obj, err := d.Open(name, shm.ReadOnly)
	must(t, err)
	seat, err := obj.TakeSeat(doorbell.CountSeats) // the row still says who died
	must(t, err)
	wantUser(0)
	seat.Leave()
	must(t, obj.Close())
	must(t, cq.Remove(d, name))
}
