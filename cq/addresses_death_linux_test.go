package cq_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["vector owner"] = childVectorOwner }

// childVectorOwner adopts a vector, and leaves it when it is told to.
func childVectorOwner() {
	d, err := shm.OpenDir("")
	need(err)
	v, err := cq.AdoptAddresses(d, os.Getenv(envQueue), cq.AddressOptions{})
	need(err)
	say("owner")
	var line string
	_, _ = fmt.Scanln(&line)
	need(v.Detach())
	say("left")
	_, _ = fmt.Scanln(&line)
}

// TestAddressOwnerDeathIsAnEvent: every process that looks things up is told once of each owner
// that died, and of its successor. One that is stopped is not dead, nor one that leaves.
func TestAddressOwnerDeathIsAnEvent(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	d, name := openDir(t), queueName(t)
	own, err := cq.CreateAddresses(d, name, cq.AddressOptions{Lifetime: cq.Persistent})
	must(t, err)
	_, err = own.Insert(sockaddrs(0, 1))
	must(t, err)
	var es []*cq.EventQueue
	for _, events := range []string{"one", "two"} {
		v, err := cq.OpenAddresses(d, name)
		must(t, err)
		t.Cleanup(func() { must(t, v.Close()) })
		es = append(es, deathsOf(t, events, v.BindEvents))
	}
	fid := own.FID()
	must(t, own.Detach())
	wantNew := func(pid int) {
		t.Helper()
		for _, e := range es {
			if ev, p := nextPeer(t, e); ev.Event != cq.EventPeerNew || ev.FID != fid ||
				p.Role != cq.PeerOwner || p.PID != pid {
				t.Errorf("%+v, %+v, want owner %d", ev, p, pid)
			}
		}
	}
	for _, dies := range []bool{true, true, false} {
		c := startChild(t, "vector owner", envQueue+"="+name)
		if got := c.line(t); got != "owner" {
			t.Fatal(got)
		}
		wantNew(c.Process.Pid)
		if !dies {
			_, err := fmt.Fprintln(c.in, "leave")
			must(t, err)
			if got := c.line(t); got != "left" {
				t.Fatal(got)
			}
			c.kill()
			break
		}
		must(t, c.Process.Signal(syscall.SIGSTOP))
		noNews(t, es[0])
		c.kill()
		for _, e := range es {
			wantDeath(t, e, fid, cq.PeerOwner, c.Process.Pid)
		}
	}
	for _, e := range es {
		noNews(t, e)
	}
	own, err = cq.AdoptAddresses(d, name, cq.AddressOptions{})
	must(t, err)
	wantNew(os.Getpid())
	must(t, own.Close())
}
