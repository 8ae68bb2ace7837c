package ctl_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["full reader"] = childFullReader }

// childFullReader has a queue with two lanes in which 3 entries are unread, and one of events.
func childFullReader() {
	d, err := shm.OpenDir("")
	need(err)
	_, err = cq.Create(d, "q", cq.Options{Size: 8})
	need(err)
	for i := range 2 {
		w, err := cq.Attach(context.Background(), d, "q", cq.WriterOptions{})
		need(err)
		for range i + 1 {
			need(w.Post(&cq.Entry{}))
		}
	}
	e, err := cq.CreateEvents(d, "e", cq.EventOptions{Write: true})
	need(err)
	_, err = e.Write(&cq.Event{Event: cq.EventUser})
	need(err)
	say("full")
	untilTold()
}

// counted says what a collection finds.
func counted(t *testing.T, d *shm.Dir, o ctl.CollectOptions) map[string]ctl.Remains {
	t.Helper()
	all, err := ctl.Collect(d, o)
	must(t, err)
	out := map[string]ctl.Remains{}
	for _, r := range all {
		out[r.Name] = r
	}
	return out
}

// TestCollectCounts: what is unread and how large it is all together is known of queues that live
// too; and when entries that nobody read go, that is said.
func TestCollectCounts(t *testing.T) {
	d := ownDir(t)
	c := startChild(t, d, "full reader")
	_ = c.line(t)
	var bytes uint64
	for _, file := range []string{"reader", "lane-0001", "lane-0002"} {
		info, err := os.Stat(d.Path() + "/q/" + file)
		must(t, err)
		bytes += uint64(info.Size())
	}
	look := func(when, fate, says string, o ctl.CollectOptions) {
		t.Helper()
		all := counted(t, d, o)
		for name, unread := range map[string]uint64{"q": 3, "e": 1} {
			r := all[name]
			if r.Fate != fate || r.Unread == nil || *r.Unread != unread {
				t.Errorf("%s, %s: %s, unread %v", when, name, r.Fate, r.Unread)
			}
			if want := strings.ReplaceAll(says, "N", fmt.Sprint(unread)); !strings.Contains(r.Reason, want) {
				t.Errorf("%s, %s: %q does not say %q", when, name, r.Reason, want)
			}
		}
		if r := all["q"]; r.SizeBytes == nil || *r.SizeBytes != bytes {
			t.Errorf("%s: size %v, want %d", when, r.SizeBytes, bytes)
		}
	}
	look("alive", ctl.FateLiving, "lives", ctl.CollectOptions{})
	c.kill()
	look("dead", ctl.FateGarbage, "with N entr", ctl.CollectOptions{})
	look("removed", ctl.FateRemoved, "with N entr", ctl.CollectOptions{Remove: true})
}

// TestCollectNamesTheNamespace: a number of another PID namespace is not given as if it were ours.
func TestCollectNamesTheNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		shmtest.Require(t, "pidns", errors.New("a PID namespace needs root"))
	}
	d := ownDir(t)
	cmd := childOf(t, d, "full reader")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	c := start(t, cmd)
	_ = c.line(t)
	r := counted(t, d, ctl.CollectOptions{})["q"]
	if r.Fate != ctl.FateLiving || !strings.Contains(r.Reason, "PID namespace") {
		t.Errorf("%s: %q", r.Fate, r.Reason)
	}
	_, err := cq.Adopt(d, "q", cq.Options{})
	var busy *shm.BusyError
	if !errors.As(err, &busy) || !strings.Contains(err.Error(), "PID namespace") {
		t.Errorf("adopt: %v", err)
	}
}
