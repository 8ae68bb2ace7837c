package ctl_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["owner of all"] = childOwnerOfAll }

// childOwnerOfAll owns an object of each kind, and the lane of a writer, and has a copy that keeps
// its locks.
func childOwnerOfAll() {
	d, err := shm.OpenDir("")
	need(err)
	_, err = cq.Create(cq.Named(d, "queue"), cq.Options{Size: 4})
	need(err)
	_, err = cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{Size: 4})
	need(err)
	_, err = cq.CreateAddresses(cq.Named(d, "addresses"), cq.AddressOptions{Count: 4})
	need(err)
	_, err = cq.Attach(context.Background(), cq.Named(d, "ours"), cq.WriterOptions{})
	need(err)
	pid, err := shmtest.Fork()
	need(err)
	say("%d", pid)
	untilTold()
}

// TestStates: what becomes of an owner is the same word in whatever it owns.
func TestStates(t *testing.T) {
	d := ownDir(t)
	ours, err := cq.Create(cq.Named(d, "ours"), cq.Options{Size: 4})
	must(t, err)
	defer ours.Close()
	owner := startChild(t, d, "owner of all")
	var copied int
	_, err = fmt.Sscan(owner.line(t), &copied)
	must(t, err)
	heir, err := os.FindProcess(copied)
	must(t, err)
	defer heir.Kill()
	states := func() []string {
		var all []string
		for _, name := range []string{"queue", "events"} {
			q, err := ctl.Show(d, name)
			must(t, err)
			all = append(all, *q.State)
		}
		o, err := ctl.ShowObject(d, "addresses")
		must(t, err)
		q, err := ctl.Show(d, "ours")
		must(t, err)
		return append(all, o.State, q.Lanes[1].State)
	}
	for _, c := range []struct {
		state string
		make  func()
	}{
		{ctl.StateOpen, func() {}},
		{ctl.StateStopped, func() { must(t, owner.Process.Signal(syscall.SIGSTOP)) }},
		{ctl.StateOpen, func() { must(t, owner.Process.Signal(syscall.SIGCONT)) }},
		{ctl.StateLockKept, owner.kill},
		{ctl.StateDead, func() { must(t, heir.Kill()) }},
	} {
		c.make()
		want := slices.Repeat([]string{c.state}, 4)
		var got []string
		for range 5000 { // the kernel stops and buries in its own time
			if got = states(); slices.Equal(got, want) {
				break
			}
			time.Sleep(2 * time.Millisecond)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v, want %s", got, c.state)
		}
	}
}

// TestMonitorSince: how long nothing came is not known at the first look, at least the time since
// then while nothing comes, and afterwards the time since it was seen.
func TestMonitorSince(t *testing.T) {
	d := openDir(t)
	q, w := queue(t, d, "since", cq.Options{Size: 8})
	m := ctl.NewMonitor(d)
	defer m.Close()
	look := func() (posted, read *ctl.Since) {
		got, err := m.Show("since")
		must(t, err)
		return got.SincePosted, got.SinceRead
	}
	if p, r := look(); p != nil || r != nil {
		t.Errorf("at the first look: %v, %v", p, r)
	}
	began := time.Now()
	if p, r := look(); p == nil || r == nil || !p.More || !r.More || p.Ns <= 0 ||
		r.Ns > int64(time.Minute) {
		t.Errorf("nothing came: %v, %v", p, r)
	}
	must(t, w.Post(&cq.Entry{}))
	if p, r := look(); p.More || p.Ns != 0 || !r.More {
		t.Errorf("posted: %v, %v", p, r)
	}
	_, err := cq.Read(q, make([]cq.Context, 4))
	must(t, err)
	if p, r := look(); p.More || p.Ns <= 0 || r.More || r.Ns != 0 {
		t.Errorf("read: %v, %v", p, r)
	}
	if p, r := look(); p.Ns <= r.Ns || p.Ns > int64(time.Since(began)) {
		t.Errorf("later: %v, %v", p, r)
	}
}
