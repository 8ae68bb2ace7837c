package ctl_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() {
	roles["collector"], roles["tenant"], roles["heir"] = childCollector, childTenant, childHeir
	roles["events heir"] = childEventsHeir
}

const (
	envName   = "SHMRING_TEST_NAME"
	envRounds = "SHMRING_TEST_ROUNDS"
	envKeep   = "SHMRING_TEST_KEEP"
)

// childCollector collects all the time, also what waits for a successor, until it is told to stop.
func childCollector() {
	d := shmtest.Needs(shm.OpenDir(""))
	var stop atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop.Store(true)
	}()
	say("ready")
	o := ctl.CollectOptions{Remove: true, Waiting: strings.Fields(os.Getenv(envKeep))}
	for first := true; first || !stop.Load(); first = false {
		time.Sleep(time.Duration(rand.IntN(int(8 * time.Millisecond)))) // the others want the CPU too
		all := shmtest.Needs(ctl.Collect(d, o))
		for _, r := range all {
			if r.Fate == ctl.FateFailed && r.Error.Code != ctl.CodeFailure {
				need(fmt.Errorf("%s: %+v", r.Name, r.Error))
			}
		}
	}
}

// childTenant makes things of its own, and finds that each name is still its own as long as it has
// it. At the end it dies over that.
func childTenant() {
	d := shmtest.Needs(shm.OpenDir(""))
	rounds := shmtest.Needs(strconv.Atoi(os.Getenv(envRounds)))
	for i := range rounds {
		tenancy(d, os.Getenv(envName)+strconv.Itoa(i%3), i+1 == rounds)
	}
}

// persist repeats what somebody who is collecting may be in the way of for a moment.
func persist[T any](what func() (T, error)) T {
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		v, err := what()
		if err == nil {
			return v
		}
		var busy *shm.BusyError
		transient := errors.Is(err, syscall.EEXIST) || errors.Is(err, cq.ErrBusy) ||
			errors.As(err, &busy) || errors.Is(err, cq.ErrClosed)
		if !transient || time.Now().After(end) {
			need(err)
		}
	}
}

func tenancy(d *shm.Dir, name string, last bool) {
	q := persist(func() (*cq.Queue, error) {
		return cq.Create(cq.Named(d, name),
			cq.Options{Size: 4})
	})
	w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, name), cq.WriterOptions{}))
	c := persist(func() (*cq.Counter, error) {
		return cq.CreateCounter(cq.Named(d, name+"-count"), cq.CounterOptions{})
	})
	v := persist(func() (*cq.AddressVector, error) {
		return cq.CreateAddresses(cq.Named(d, name+"-peers"), cq.AddressOptions{Count: 4})
	})
	names := []string{name + "/reader", name + fmt.Sprintf("/lane-%04d", w.Lane()), name + "-count",
		name + "-peers"}
	was := make([]os.FileInfo, len(names))
	same := func() {
		for i, n := range names {
			info := shmtest.Needs(os.Stat(filepath.Join(d.Path(), n)))
			if was[i] != nil && !os.SameFile(was[i], info) {
				need(fmt.Errorf("%s is another one", n))
			}
			was[i] = info
		}
	}
	same()
	dst := make([]cq.Msg, 4)
	for k := range uint64(20) {
		need(w.Post(&cq.Entry{Context: k}))
		same()
		if n, err := cq.Read(q, dst); n != 1 || err != nil || dst[0].Context != k {
			need(fmt.Errorf("read %d, %+v, %w", n, dst[0], err))
		}
	}
	if last {
		need(syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
	need(errors.Join(w.Close(), q.Close(), c.Close(), v.Close()))
}

// childEventsHeir is childHeir for a persistent event queue.
func childEventsHeir() {
	d := shmtest.Needs(shm.OpenDir(""))
	n := shmtest.Needs(strconv.ParseUint(os.Getenv(envRounds), 10, 64))
	e := persist(func() (*cq.EventQueue, error) {
		if n == 0 {
			return cq.CreateEvents(cq.Named(d, os.Getenv(envName)),
				cq.EventOptions{Size: 8, Write: true, Lifetime: cq.Persistent})
		}
		return cq.OpenEvents(cq.Named(d, os.Getenv(envName)),
			cq.EventOptions{Existing: true, Write: true})
	})
	for k := range uint64(2) {
		shmtest.Needs(e.Write(&cq.Event{Event: cq.EventUser, Context: 2*n + k}))
	}
	for k := range uint64(2) {
		var ev cq.Event
		if n == 0 {
			break
		}
		if _, err := e.Read(&ev, 0); err != nil || ev.Context != 2*n-2+k {
			need(fmt.Errorf("heir %d read %+v, %w", n, ev, err))
		}
	}
	say("ready")
	untilTold()
}

// childHeir adopts a persistent queue or creates it, as number n of a chain: posts two entries,
// reads those of its predecessor, and dies. While nobody has the queue it has unread entries.
func childHeir() {
	d := shmtest.Needs(shm.OpenDir(""))
	n := shmtest.Needs(strconv.ParseUint(os.Getenv(envRounds), 10, 64))
	o := cq.Options{Size: 8, Lifetime: cq.Persistent}
	q := persist(func() (*cq.Queue, error) {
		if n == 0 {
			return cq.Create(cq.Named(d, os.Getenv(envName)), o)
		}
		o.Existing = true
		return cq.Open(cq.Named(d, os.Getenv(envName)), o)
	})
	w, err := cq.Attach(context.Background(), cq.Named(d, os.Getenv(envName)), cq.WriterOptions{})
	need(err)
	for k := range uint64(2) {
		need(w.Post(&cq.Entry{Context: 2*n + k}))
	}
	if n > 0 {
		dst := make([]cq.Msg, 2)
		got, err := cq.Read(q, dst)
		if got != 2 || err != nil || dst[0].Context != 2*n-2 || dst[1].Context != 2*n-1 {
			need(fmt.Errorf("heir %d read %d, %+v, %w", n, got, dst, err))
		}
	}
	say("ready")
	untilTold()
}

// TestCollectAtOnce has some processes collect all the time while others make, adopt, attach and
// die: no name of a living process goes, and no entry or event of a persistent queue.
func TestCollectAtOnce(t *testing.T) {
	d := ownDir(t)
	crowd, rounds := 4, "5"
	if testing.Short() {
		crowd, rounds = 2, "4"
	}
	var collectors []*shmtest.Proc
	for range crowd {
		c := startChild(t, d, "collector", envKeep+"=will0 will1 news")
		c.Line(t)
		collectors = append(collectors, c)
	}
	var tenants []*shmtest.Proc
	for i := range 2 {
		for range 2 { // two contend for one set of names
			tenants = append(tenants, startChild(t, d, "tenant", envRounds+"="+rounds,
				envName+"=t"+strconv.Itoa(i)))
		}
	}
	for n := range 4 {
		for i := range 2 {
			h := startChild(t, d, "heir", envName+"=will"+strconv.Itoa(i), envRounds+"="+strconv.Itoa(n))
			if h.Line(t) != "ready" {
				t.Fatal("an heir did not get its queue")
			}
			h.Kill()
		}
		h := startChild(t, d, "events heir", envName+"=news", envRounds+"="+strconv.Itoa(n))
		if h.Line(t) != "ready" {
			t.Fatal("an heir did not get its event queue")
		}
		h.Kill()
	}
	for _, c := range tenants {
		c.Rest(t)
		_ = c.Wait()
		if ws := c.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
			t.Errorf("a tenant ended with %v", c.ProcessState)
		}
	}
	for _, c := range collectors[1:] {
		_ = c.Stop(t)
	}
	collectors[0].Kill() // perhaps over something
	all := shmtest.Got(ctl.Collect(d, ctl.CollectOptions{Remove: true})).Or(t)
	names := shmtest.Got(d.List()).Or(t)
	left := func(i int, name string) bool { return names[i].Name() == name }
	if len(names) != 3 || !left(0, "news") || !left(1, "will0") || !left(2, "will1") {
		t.Errorf("%v is left of %+v", names, all)
	}
	for i := range 2 {
		q := shmtest.Got(cq.Open(cq.Named(d, "will"+strconv.Itoa(i)), cq.Options{Existing: true})).Or(t)
		dst := make([]cq.Msg, 8)
		if n, err := cq.Read(q, dst); n != 2 || err != nil || dst[0].Context != 6 {
			t.Errorf("will%d: %d entries, %+v, %v", i, n, dst[0], err)
		}
		must(t, q.Close())
	}
	e := shmtest.Got(cq.OpenEvents(cq.Named(d, "news"), cq.EventOptions{Existing: true})).Or(t)
	for want := uint64(6); want < 8; want++ {
		var ev cq.Event
		if _, err := e.Read(&ev, 0); err != nil || ev.Context != want {
			t.Errorf("%+v, %v, want event %d", ev, err, want)
		}
	}
	must(t, e.Close())
	if _, err := os.Stat(filepath.Join(d.Path(), "will0")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
