package cq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// longer than every timeout of queues: a slice is 100 ms, and so is a look for deaths.
const longStop = 350 * time.Millisecond

// stopping is a way to stop a process for a while.
type stopping struct {
	halt, goOn func(p *shmtest.Proc, t testing.TB)
}

// byFreezer stops processes with a control group of either version.
func byFreezer(t *testing.T) stopping {
	group := cgroup(t, "freezer", "freezer.state cgroup.freeze")
	write := func(t testing.TB, v1, v2 string) {
		if _, err := os.Stat(group + "/freezer.state"); err == nil {
			set(t, group, "freezer.state", v1)
		} else {
			set(t, group, "cgroup.freeze", v2)
		}
	}
	thaw := func() { write(t, "THAWED", "0") }
	return stopping{func(c *shmtest.Proc, t testing.TB) {
		t.Cleanup(thaw) // before it is killed, which the frozen do not notice
		set(t, group, "cgroup.procs", strconv.Itoa(c.Process.Pid))
		write(t, "FROZEN", "1")
		eventually(t, "the child freezes", func() bool {
			state, _ := os.ReadFile(group + "/freezer.state")
			events, _ := os.ReadFile(group + "/cgroup.events")
			return string(state) == "FROZEN\n" || strings.Contains(string(events), "frozen 1")
		})
	}, func(c *shmtest.Proc, t testing.TB) {
		thaw()
		set(t, filepath.Dir(group), "cgroup.procs", strconv.Itoa(c.Process.Pid))
	}}
}

// eachStop runs a case with a process that a signal stops at each site, and one that is frozen.
func eachStop(t *testing.T, all []site, f func(t *testing.T, at site, by stopping)) {
	for _, at := range all {
		t.Run(at.String(), func(t *testing.T) {
			t.Parallel()
			f(t, at, stopping{(*shmtest.Proc).Halt, (*shmtest.Proc).GoOn})
		})
	}
	t.Run("frozen", func(t *testing.T) { t.Parallel(); f(t, namedSite, byFreezer(t)) })
}

// runner starts a writer of a queue, in lane 1.
func runner(t *testing.T, at site) (q *cq.Queue, c *child) {
	t.Helper()
	q = at.create(t, cq.Options{Size: 64, Wait: cq.WaitFD, Spin: -1, Format: cq.FormatTagged})
	c = startAt(t, "writer", at, nil, q)
	c.Says(t, "lane 1")
	return q, c
}

// sequence reads a runner's entries.
type sequence struct {
	q *cq.Queue
	account
}

func (s *sequence) next() uint64 { return s.account[1] }

// read takes what is there, or comes in time, and returns how much that was.
func (s *sequence) read(t *testing.T, wait time.Duration) int {
	t.Helper()
	var dst [16]cq.Tagged
	n, err := sread(s.q, dst[:], wait)
	if err != nil && !errors.Is(err, cq.ErrTimedOut) {
		t.Fatal(err)
	}
	for i, e := range dst[:n] {
		if e.Context != strangers {
			s.saw(t, dst[i:i+1])
		}
	}
	return n
}

const strangers = 1 << 60 // context of entries that are no runner's

// TestStoppedWriter: a writer that was stopped for longer than everybody waits for anything is not
// dead for anybody: nothing of its lane is lost or given away, others go on, and so does it.
func TestStoppedWriter(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	shmtest.Long(t)
	all := []site{namedSite, memfdSite, othersSite}
	eachStop(t, all, func(t *testing.T, at site, by stopping) {
		q, c := runner(t, at)
		e := newsOf(t, q.BindEvents, cq.EventOptions{})
		s := sequence{q, account{}}
		for round := range uint64(2) {
			for s.next() < 500*(round+1) {
				s.read(t, time.Minute)
			}
			by.halt(c.Proc, t)
			for s.read(t, 0) > 0 {
			}
			begin := time.Now()
			if n := s.read(t, longStop); n > 0 || time.Since(begin) < longStop {
				t.Errorf("%d entries of a stopped writer", n)
			}
			noNews(t, e)
			w := at.attach(t, q)
			if w.Lane() == 1 {
				t.Error("the lane of a stopped writer was given away")
			}
			must(t, w.Post(&cq.Entry{Context: strangers}))
			if n := s.read(t, time.Minute); n != 1 {
				t.Errorf("%d entries beside a stopped writer", n)
			}
			must(t, w.Close())
			by.goOn(c.Proc, t)
		}
		var posted uint64
		done := make(chan string, 1)
		go func() { done <- c.Stop(t) }()
		for said := ""; posted == 0 || s.next() < posted; {
			s.read(t, 5*time.Millisecond)
			select {
			case said = <-done:
				shmtest.Got(fmt.Sscanf(said, "1 %d", &posted)).Or(t)
			default:
			}
		}
		if n := s.read(t, 0); n > 0 {
			t.Errorf("%d entries more than were posted", n)
		}
		noNews(t, e)
	})
}

// TestStoppedReader: the queue of a reader that was stopped is nobody else's, writers meet a full
// lane and no death, and it goes on where it stopped.
func TestStoppedReader(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	shmtest.Long(t)
	eachStop(t, []site{namedSite, othersSite}, func(t *testing.T, at site, by stopping) {
		d, name := openDir(t), queueName(t)
		if at == namedSite {
			q, err := cq.Create(cq.Named(d, name), cq.Options{Size: 8, Lifetime: cq.Persistent})
			must(t, errors.Join(err, q.Detach()))
		}
		c := startReader(t, at)
		w := c.attach()
		c.expect("steady", 0, "reading")
		e := shmtest.Have(cq.CreateEvents(cq.Unnamed("small"), cq.EventOptions{Size: 2})).In(t)
		must(t, w.BindEvents(e))
		for range 2 {
			by.halt(c.Proc, t)
			var err error
			for err == nil {
				err = w.Post(&cq.Entry{Context: w.Next()})
			}
			wantErr(t, "a full lane", err, cq.ErrFull)
			noNews(t, e)
			wantErr(t, "a full lane", w.Post(&cq.Entry{}), cq.ErrFull)
			if at == namedSite {
				_, err := cq.Open(cq.Named(d, name), cq.Options{Existing: true})
				var busy *shm.BusyError
				if !errors.As(err, &busy) || busy.PID != c.Process.Pid || busy.Gone {
					t.Errorf("adopt: %v", err)
				}
				wantErr(t, "remove", collect.Remove(d, name, collect.Options{}), cq.ErrBusy)
			}
			by.goOn(c.Proc, t)
			for end := w.Next() + 100; w.Next() < end; {
				if err := w.Post(&cq.Entry{Context: w.Next()}); err == cq.ErrFull {
					time.Sleep(100 * time.Microsecond)
				} else {
					must(t, err)
				}
			}
		}
		eventually(t, "everything to be read", func() bool { return w.Free() == w.Stats().Size })
		noNews(t, e)
		if got, want := c.Stop(t), fmt.Sprintf("read %d", w.Next()); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		must(t, w.Close())
	})
}

// TestStoppedEventOwner: an event queue whose owner is stopped is not taken over, and what happened
// meanwhile is reported afterwards.
func TestStoppedEventOwner(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	d, name := openDir(t), queueName(t)+".q"
	r := startChild(t, "namespace reader", envQueue+"="+name)
	_ = r.Line(t)
	w := attachEvents(t, d, "events")
	_, e := createEvents(t, cq.EventOptions{})
	must(t, w.BindEvents(e))
	c := startChild(t, "poster", envQueue+"="+name, envCount+"=3")
	_ = c.Line(t)
	r.Halt(t)
	c.Kill()
	noNews(t, e)
	_, err := cq.OpenEvents(cq.Named(d, "events"), cq.EventOptions{Existing: true})
	wantErr(t, "adopt", err, syscall.EBUSY)
	r.GoOn(t)
	if got, want := r.Line(t), fmt.Sprintf("death of %d, with 3", c.Process.Pid); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	must(t, w.BindEvents(nil))
	_ = r.Stop(t)
}

// TestStoppedInSet: a set whose member's writer is stopped waits for the others, and hears the
// stopped one again when it goes on.
func TestStoppedInSet(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	q, c := runner(t, namedSite)
	d := openDir(t)
	other := shmtest.Have(cq.Create(cq.Named(d, "other"), cq.Options{Size: 8})).In(t)
	w := attach(t, d, "other")
	s := waitSet(t, d, cq.WaitSetOptions{})
	addTo(t, s, q, other)
	ready := make([]cq.Waitable, 2)
	seq := sequence{q, account{}}
	for range 2 {
		c.Halt(t)
		for seq.read(t, 0) > 0 {
		}
		_, _ = setWait(s, ready, 0) // what it rang before
		if n, err := setWait(s, ready, longStop); n != 0 || err == nil {
			t.Errorf("%d, %v while it is stopped", n, err)
		}
		post(t, w, 0, 1)
		if n, err := s.Wait(soon(t), ready, cq.WaitOptions{}); n != 1 || err != nil ||
			ready[0] != cq.Waitable(other) {
			t.Errorf("%d, %v, %v", n, err, ready)
		}
		_ = drain(t, other)
		c.GoOn(t)
		for at := seq.next(); seq.next() < at+200; {
			if _, err := s.Wait(soon(t), ready, cq.WaitOptions{}); err != nil {
				t.Fatal(err)
			}
			for seq.read(t, 0) > 0 {
			}
		}
	}
}

// TestStoppedRendezvous: a peer that is stopped half way costs the other side its patience and
// nothing else, and learns when it goes on that it came too late.
func TestStoppedRendezvous(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	brief := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), longStop)
		t.Cleanup(cancel)
		return ctx
	}
	t.Run("writer", func(t *testing.T) {
		q := anonymous(t, cq.Options{Size: 8, MaxLanes: 1})
		c, conn := startIn(t, memfdSite.writerRole(), nil)
		c.Halt(t)
		wantErr(t, "accept", q.Accept(brief(), conn), context.DeadlineExceeded)
		must(t, conn.Close())
		if w := join(t, q); w.Lane() != 1 { // the only one
			t.Errorf("lane %d", w.Lane())
		}
		c.GoOn(t)
		if err := c.Wait(); err == nil {
			t.Error("it is attached")
		}
	})
	t.Run("reader", func(t *testing.T) {
		c := startReader(t, othersSite)
		shmtest.Got(fmt.Fprintln(c.In, "accept", 0)).Or(t)
		c.Halt(t)
		_, err := cq.Attach(brief(), cq.Over(c.conn),
			cq.WriterOptions{Trust: cq.CrossUser, Allow: bothUsers()})
		wantErr(t, "attach", err, context.DeadlineExceeded)
		must(t, c.conn.Close())
		c.GoOn(t)
		_ = c.In.Close()
		_ = c.Wait() // it fails, as it says, and does not hang
	})
}

const envKind = "SHMRING_TEST_KIND"
