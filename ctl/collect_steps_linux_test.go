//go:build shmring_steps

package ctl_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestCollectStep kills a collector at each of its steps, at the first passages of those that it
// makes often: what is garbage then goes with the next collection, and what waits still waits.
func TestCollectStep(t *testing.T) {
	for label, passages := range map[crash.Label]int{crash.CollectLanes: 2, crash.CollectShut: 2,
		crash.CollectClaimed: 2, crash.CollectCondemned: 2, crash.CollectUnlinked: 2,
		crash.CollectEmptied: 2, crash.CollectObject: 4, crash.ClaimLocked: 4} {
		for n := 1; n <= passages; n++ {
			t.Run(fmt.Sprintf("%v:%d", label, n), func(t *testing.T) { collectorDies(t, label, n) })
		}
	}
}

func collectorDies(t *testing.T, label crash.Label, n int) {
	d := ownDir(t)
	c := startChild(t, d, "household")
	c.Line(t)
	c.Kill()
	c = startChild(t, d, "collector", fmt.Sprintf("%s=%v:%d", crash.Env, label, n),
		envKeep+"=drained")
	c.Rest(t)
	_ = c.Wait()
	if ws := c.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
		t.Fatalf("the collector ended with %v", c.ProcessState)
	}
	shmtest.Got(ctl.Collect(d, ctl.CollectOptions{Remove: true, Waiting: []string{"drained"}})).Or(t)
	got := map[string]string{}
	all := shmtest.Got(ctl.Collect(d, ctl.CollectOptions{})).Or(t)
	for _, r := range all {
		got[r.Name] = r.Fate
	}
	want := map[string]string{"unread": "unread", "left": "left", "left-unread": "unread",
		"events-unread": "unread", "events-drained": "persistent", "count-kept": "persistent",
		"peers-kept": "persistent", "peers-left": "left",
		"region": "persistent", "kind-77": "foreign"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("left are %v, want %v", got, want)
	}
	for name, n := range map[string]int{"unread": 1, "left-unread": 1} {
		q := shmtest.Got(cq.Open(cq.Named(d, name), cq.Options{Existing: true})).Or(t)
		if got, err := cq.Read(q, make([]cq.Msg, 8)); got != n || err != nil {
			t.Errorf("%s has %d entries, %v", name, got, err)
		}
		must(t, q.Close())
	}
}

// TestMeetsCollector: who wants the name of something dead waits for a collector that removes it,
// and does not take that for an owner who lives.
func TestMeetsCollector(t *testing.T) {
	d := ownDir(t)
	c := startChild(t, d, "household")
	c.Line(t)
	c.Kill()
	defer func(most time.Duration) { collect.ContestMost = most }(collect.ContestMost)
	collect.ContestMost = time.Millisecond
	for _, name := range []string{"endpoint", "peers", "dead"} {
		at, met := crash.CollectObject, error(nil)
		if name == "dead" { // a queue
			at = crash.CollectCondemned
		}
		crash.Passing(at, 1, func() { met = collect.RemoveFormer(d, name) })
		must(t, collect.Remove(d, name, collect.Options{}))
		if !errors.Is(met, collect.ErrContested) {
			t.Errorf("%s: who wanted the name met a collector, and got %v", name, met)
		}
	}
}
