package command

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/shm"
)

// everything makes one of each kind in d.
func everything(t testing.TB, d *shm.Dir) (q *cq.Queue, set *cq.WaitSet, c *cq.Counter) {
	t.Helper()
	q = createQueue(t, d, "orders", cq.Options{Size: 8})
	e, err := cq.CreateEvents(cq.Named(d, "news"), cq.EventOptions{Size: 8, Write: true})
	must(t, err)
	_, err = e.Write(&cq.Event{Event: cq.EventUser, Context: 3})
	must(t, err)
	c, err = cq.CreateCounter(cq.Named(d, "sent"), cq.CounterOptions{Events: cq.BytesCounter})
	must(t, err)
	must(t, c.Add(41))
	must(t, c.AddErr(2))
	v, err := cq.CreateAddresses(cq.Named(d, "peers"), cq.AddressOptions{Count: 16})
	must(t, err)
	set, err = cq.NewWaitSet(d, cq.WaitSetOptions{})
	must(t, err)
	must(t, set.Add(q))
	t.Cleanup(func() {
		must(t, errors.Join(set.Remove(q), set.Close(), c.Close(), v.Close(), e.Close()))
	})
	return q, set, c
}

func TestObjectsAreListed(t *testing.T) {
	d := newDir(t)
	everything(t, d)
	must(t, os.WriteFile(filepath.Join(d.Path(), "readme"), []byte("no object"), 0o600))
	must(t, os.WriteFile(filepath.Join(d.Path(), "zeros"), make([]byte, 8192), 0o600))
	o, err := d.Create("later", shm.Spec{Kind: 77}, nil)
	must(t, err)
	defer func() { must(t, errors.Join(o.Unlink(), o.Close())) }()

	before := state(t, d.Path())
	text := ok(t, "ls", "-j")
	kinds := map[string]string{}
	for _, q := range queues(t, text) {
		kinds[q.Name] = *q.Kind
	}
	for _, b := range objects(t, text) {
		name := b.Name
		if strings.HasPrefix(name, "bell-") {
			name = "bell"
		}
		kinds[name] = *b.Kind
	}
	want := map[string]string{"orders": "queue", "news": "events", "sent": "counter",
		"peers": "addresses", "bell": "bell", "later": "kind 77"}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	text = ok(t, "ls")
	has(t, text, "value 41, errors 2, open 1", "0 of 16", "nobody waits",
		"events", "kind 77")
	text = ok(t, "show", "*")
	has(t, text, "in a set", "bell-", "handle 0:", "value:", "used:",
		"queues:           orders")
	ok(t, "tail", "news", "-j")
	if diff := cmp.Diff(before, state(t, d.Path())); diff != "" {
		t.Errorf("looking changed (-before +after):\n%s", diff)
	}
}

func TestShowObjects(t *testing.T) {
	d := newDir(t)
	q, set, c := everything(t, d)
	got := objects(t, ok(t, "show", "sent", "peers", "-j"))
	if len(got) != 2 || got[0].Counter == nil || got[0].Counter.Value != 41 ||
		got[0].Counter.Errors != 2 || got[0].Counter.Events != "bytes" || got[0].Process != nil ||
		len(got[0].Counter.Handles) != 1 || *got[0].Counter.Handles[0].PID != os.Getpid() {
		t.Errorf("counter: %+v", got)
	}
	if a := got[1].Addresses; a == nil || a.Count != 16 || a.Used != 0 || a.Closed ||
		*got[1].Process.PID != os.Getpid() {
		t.Errorf("addresses: %+v", got[1])
	}
	bell := showOne(t, "orders").Bell
	if bell.Domain == nil || !bell.Member || bell.Channel != "none" {
		t.Fatalf("bell: %+v", bell)
	}
	if b := objects(t, ok(t, "show", "bell-"+*bell.Domain, "-j")); len(b) != 1 ||
		b[0].Domain == nil || b[0].Domain.Sleeping || b[0].Domain.Queues[0] != "orders" ||
		*b[0].UUID != *bell.Domain {
		t.Errorf("%+v", b)
	}
	// Both waits show, and end by themselves.
	done := make(chan error, 2)
	go func() { done <- c.Wait(context.Background(), 50, cq.WaitOptions{Timeout: time.Minute}) }()
	go func() {
		_, err := set.Wait(context.Background(), make([]cq.Waitable, 1),
			cq.WaitOptions{Timeout: time.Minute})
		done <- err
	}()
	eventually(t, "both wait", func() bool {
		waits := false
		for _, b := range objects(t, ok(t, "ls", "-j")) {
			if b.Counter != nil && (len(b.Counter.Handles) == 0 || b.Counter.Handles[0].Threshold == nil) {
				return false
			}
			waits = waits || b.Domain != nil && b.Domain.Sleeping
		}
		return waits
	})
	must(t, c.Add(9))
	ok(t, "post", "orders")
	must(t, <-done)
	must(t, <-done)
	_, _ = cq.Read(q, make([]cq.Msg, 4))
}

// TestDamagedObject is shown with its error, and does not keep the others from being listed.
func TestDamagedObject(t *testing.T) {
	d := newDir(t)
	c, err := cq.CreateCounter(cq.Named(d, "sent"), cq.CounterOptions{Lifetime: cq.Persistent})
	must(t, err)
	must(t, c.Close())
	leave(t, d, "orders", 1)
	scribble(t, filepath.Join(d.Path(), "sent"), 0x100)
	got := objects(t, ok(t, "ls", "-j"))
	if len(got) != 1 || got[0].Error == nil || got[0].State != "corrupt" {
		t.Errorf("%+v", got)
	}
	if r := run(t, "show", "sent"); r.code != 1 || !strings.Contains(r.stdout, "error:") {
		t.Errorf("exit %d, %s, %s", r.code, r.stdout, r.stderr)
	}
	if _, err := ctl.ShowObject(d, "nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
