package cq_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// mortal starts a writer that posts once and waits, here or in a PID namespace of its own, where
// its death gives no notice.
func mortal(t *testing.T, queue string, elsewhere bool) *child {
	t.Helper()
	cmd := shmtest.Child(t, "writer", envQueue+"="+queue, envCount+"=1")
	if elsewhere {
		if os.Geteuid() != 0 {
			shmtest.Require(t, "pidns", errors.New("a PID namespace needs root"))
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	}
	c := start(t, cmd)
	if got := c.line(t); got != "lane 1" {
		t.Fatal(got)
	}
	return c
}

// publishFor does what the writer would have done just before it died: publish, and not ring.
func publishFor(t *testing.T, d *shm.Dir, queue string) {
	t.Helper()
	lane := scribble(t, d, queue, "lane-0001")
	slot := lane.section(t, cq.SectSlots, 1)[cq.SlotBytes:]
	poke(slot, 0, 77)
	poke(slot, 56, 1|1<<32)
	poke(lane.section(t, cq.SectLane, 1), 0, 2)
}

// TestDeathWakes: a writer that died between publishing and ringing leaves nobody asleep, neither
// in a blocking read nor on a descriptor.
func TestDeathWakes(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for name, elsewhere := range map[string]bool{"here": false, "in another PID namespace": true} {
		t.Run(name, func(t *testing.T) {
			d, q := create(t, cq.Options{Size: 8, Wait: cq.WaitFD, Spin: -1})
			c := mortal(t, q.Name(), elsewhere)
			for got := 0; got < 1; {
				got += len(drain(t, q))
			}
			asleep := make(chan struct{})
			go func() {
				defer close(asleep)
				for q.Stats().Sleeps == 0 {
					time.Sleep(time.Millisecond)
				}
				publishFor(t, d, q.Name())
				time.Sleep(5 * time.Millisecond)
				c.kill()
			}()
			dst := make([]cq.Context, 2)
			if n, err := sread(q, dst, time.Minute); n != 1 || dst[0].Context != 77 {
				t.Errorf("%d, %v, %v", n, err, dst)
			}
			<-asleep
			// The lane is free for the next, wherever its writer was.
			w := attach(t, d, q.Name())
			if w.Lane() != 1 || w.Next() != 2 {
				t.Errorf("lane %d at %d", w.Lane(), w.Next())
			}
		})
		t.Run("descriptor "+name, func(t *testing.T) {
			d, q := create(t, cq.Options{Size: 8, Wait: cq.WaitFD})
			c := mortal(t, q.Name(), elsewhere)
			for got := 0; got < 1; {
				got += len(drain(t, q))
			}
			ep := newEpoll(t, unix.EPOLLIN, q)
			for q.TryWait() != nil {
				_ = drain(t, q)
			}
			publishFor(t, d, q.Name())
			if !elsewhere && ep.wait(20) != nil {
				t.Fatal("readable before its death")
			}
			c.kill()
			for {
				if ep.wait(60_000) == nil {
					t.Fatal("its death is not seen")
				}
				if q.TryWait() != nil { // the notice of a slice may have been an earlier one
					break
				}
			}
			if got := drain(t, q); len(got) != 1 || got[0] != 77 {
				t.Error(got)
			}
		})
	}
}

// TestDestroyedHalfway: a reader that died while it destroyed its queue leaves one that nobody can
// use any more, and that makes way for a new one, persistent or not.
func TestDestroyedHalfway(t *testing.T) {
	t.Parallel()
	for _, lifetime := range []string{"0", "1"} {
		d := openDir(t)
		name := queueName(t) + lifetime
		killedCreator(t, name, lifetime)
		words := scribble(t, d, name, cq.ReaderFile).section(t, cq.SectQueue, 0)
		poke(words, cq.OffState, kind.StateClosed)
		use := users(t, d, name)
		for _, what := range []string{"adopt", "attach"} {
			wantErr(t, what, use[what](), cq.ErrClosed, os.ErrClosed)
		}
		q, err := cq.Open(cq.Named(d, name), cq.Options{})
		if err != nil {
			_ = os.RemoveAll(d.Path() + "/" + name)
			t.Fatal(err)
		}
		must(t, q.Close())
		nothingLeft(t, d)
	}
}

// TestDeathOfSuccessor: the second writer of a lane that the reader never parked between the two is
// watched as the first one was.
func TestDeathOfSuccessor(t *testing.T) {
	t.Parallel()
	d, q := create(t, cq.Options{Size: 8, Spin: -1})
	first := startChild(t, "writer", envQueue+"="+q.Name(), envCount+"=1")
	_ = first.line(t)
	for got := 0; got < 1; { // from here on the lane is hot
		got += len(drain(t, q))
	}
	first.kill()
	second := startChild(t, "writer", envQueue+"="+q.Name(), envCount+"=1")
	if got := second.line(t); got != "lane 1" {
		t.Fatal(got)
	}
	_ = drain(t, q)
	for range 2 { // what woke up for the two is looked at
		_, _ = sread(q, make([]cq.Msg, 1), 20*time.Millisecond)
	}
	sleeps := q.Stats().Sleeps
	done := make(chan struct{})
	go func() {
		defer close(done)
		for q.Stats().Sleeps == sleeps {
			time.Sleep(time.Millisecond)
		}
		publishFor(t, d, q.Name())
		time.Sleep(5 * time.Millisecond)
		second.kill()
	}()
	dst := make([]cq.Context, 2)
	if n, err := sread(q, dst, time.Minute); n != 1 || dst[0].Context != 77 {
		t.Errorf("%d, %v, %v", n, err, dst)
	}
	<-done
}

// TestDeathWakesSets: a writer that died between publishing and ringing leaves nobody asleep, on a
// set, its descriptor, or a channel.
func TestDeathWakesSets(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]bool{"here": false, "in another PID namespace": true} {
		t.Run(name, func(t *testing.T) {
			d := openDir(t)
			s := waitSet(t, d, cq.WaitSetOptions{})
			byFD := waitSet(t, d, cq.WaitSetOptions{Wait: cq.WaitFD})
			c := channel(t, d)
			q, err := cq.Create(cq.Named(d, queueName(t)), cq.Options{Size: 8, Shared: true})
			must(t, err)
			t.Cleanup(func() { closeQueue(t, q) })
			must(t, c.Attach(q))
			t.Cleanup(func() { must(t, c.Detach(context.Background(), q)) })
			for _, set := range []*cq.WaitSet{s, byFD} {
				must(t, set.Add(q))
				t.Cleanup(func() { must(t, set.Remove(q)) })
			}
			writer := mortal(t, q.Name(), elsewhere)
			for got := 0; got < 1; {
				got += len(drain(t, q))
			}
			must(t, c.RequestNotify(q, cq.NotifyAny))
			for byFD.TryWait() != nil {
				drain(t, q)
			}
			woken := make(chan error, 2)
			go func() {
				_, err := setWait(s, nil, time.Minute)
				woken <- err
			}()
			go func() {
				ev, err := getEvent(c, time.Minute)
				if err == nil {
					err = c.Ack(ev.Queue, 1)
				}
				woken <- err
			}()
			time.Sleep(20 * time.Millisecond) // long enough to be asleep, mostly
			publishFor(t, d, q.Name())
			writer.kill()
			for range 2 {
				if err := <-woken; err != nil {
					t.Error(err)
				}
			}
			if !readable(t, waitFD(byFD), 60_000) {
				t.Error("never readable")
			}
			if got := drain(t, q); len(got) != 1 || got[0] != 77 {
				t.Error(got)
			}
		})
	}
}

// TestDeadBellManyNames: a bell that its process left in several directories goes from each of them
// as soon as somebody has a set for it, or puts a queue of it into one.
func TestDeadBellManyNames(t *testing.T) {
	one := openDir(t)
	dirs := []*shm.Dir{one}
	for range 2 {
		path, err := os.MkdirTemp(filepath.Dir(one.Path()), "shmring-more-")
		must(t, err)
		t.Cleanup(func() { must(t, os.RemoveAll(path)) })
		d, err := shm.OpenDir(path)
		must(t, err)
		t.Cleanup(func() { must(t, d.Close()) })
		dirs = append(dirs, d)
	}
	spec := cq.BellSpec()
	spec.UUID = shm.NewUUID()
	name := "bell-" + spec.UUID.String()
	obj, err := one.Create(name, spec, nil)
	must(t, err)
	for _, d := range dirs[1:] {
		must(t, obj.LinkTo(d, name))
	}
	must(t, obj.Release())
	must(t, obj.Close())

	for _, d := range dirs[:2] {
		s, err := cq.NewWaitSet(d, cq.WaitSetOptions{})
		must(t, err)
		must(t, s.Close())
	}
	s := waitSet(t, one, cq.WaitSetOptions{})
	q, err := cq.Create(cq.Named(dirs[2], "q"), cq.Options{})
	must(t, err)
	must(t, s.Add(q))
	must(t, s.Remove(q))
	must(t, q.Close())
	for i, d := range dirs {
		names, err := d.List()
		must(t, err)
		for _, n := range names {
			if strings.Contains(n.Name, spec.UUID.String()) {
				t.Errorf("directory %d still has %s", i, n.Name)
			}
		}
	}
}

// TestBellGoesWithoutDescriptors: a process that has no descriptor left takes its bell away.
func TestBellGoesWithoutDescriptors(t *testing.T) {
	d := openDir(t)
	bells := func() (n int) {
		names, err := d.List()
		must(t, err)
		for _, name := range names {
			if strings.HasPrefix(name.Name, "bell-") {
				n++
			}
		}
		return n
	}
	before := bells()
	s, err := cq.NewWaitSet(d, cq.WaitSetOptions{})
	must(t, err)
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}))
	err = s.Close()
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if n := bells(); err != nil || n != before {
		t.Errorf("%d bells, before there were %d; %v", n, before, err)
	}
}
