package cq_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() {
	roles["signaler"], roles["signaled reader"] = childSignaler, childSignaledReader
}

// childSignaler signals the queue once and says so.
func childSignaler() {
	d, err := shm.OpenDir("")
	need(err)
	need(cq.SignalQueue(cq.Named(d, os.Getenv(envQueue))))
	say("signaled")
}

// TestSignalQueueAcross: another process, without a lane, ends a blocked read, and leaves a signal
// for one that comes later.
func TestSignalQueueAcross(t *testing.T) {
	_, q := create(t, cq.Options{Size: 8, MaxLanes: 1, Spin: -1})
	for i := range 2 {
		got := make(chan error, 1)
		if i == 0 {
			go func() { got <- wait(q, time.Minute) }()
			eventually(t, "the read sleeps", func() bool { return q.Stats().Sleeps > 0 })
		}
		c := startChild(t, "signaler", envQueue+"="+queueName(t))
		if s := c.stop(t); s != "signaled" {
			t.Fatal(s)
		}
		if i == 1 {
			got <- wait(q, time.Minute)
		}
		wantErr(t, "read", <-got, cq.ErrSignaled)
	}
	if s := show(t, openDir(t), queueName(t)); len(s.Lanes) != 1 || s.Bell.SignalPending {
		t.Errorf("a lane or the signal stayed: %+v", s)
	}
}

// TestSignalQueueFD: a reader that sleeps in its own epoll_wait is woken through its descriptor.
func TestSignalQueueFD(t *testing.T) {
	d, q := create(t, cq.Options{Size: 8, Wait: cq.WaitFD})
	ep := newEpoll(t, unix.EPOLLIN, q)
	must(t, q.TryWait())
	if got := ep.wait(0); got != nil {
		t.Fatal("readable before")
	}
	must(t, cq.SignalQueue(cq.Named(d, queueName(t))))
	if got := ep.wait(60_000); len(got) != 1 {
		t.Error("nothing to be seen of the signal")
	}
	wantErr(t, "trywait", q.TryWait(), cq.ErrSignaled)
}

func TestSignalQueueRefuses(t *testing.T) {
	d := openDir(t)
	name := queueName(t)
	wantErr(t, "no queue", cq.SignalQueue(cq.Named(d, name)), fs.ErrNotExist)
	wantErr(t, "name", cq.SignalQueue(cq.Named(d, "a/b")), shm.ErrName)
	q, err := cq.Create(cq.Named(d, name), cq.Options{Size: 8, Wait: cq.WaitNone})
	must(t, err)
	wantErr(t, "no wait object", cq.SignalQueue(cq.Named(d, name)), cq.ErrNoWait, unix.ENOSYS)
	must(t, q.Close())
}

// childSignaledReader has a queue, or an event queue, and leaves it or is killed over it.
func childSignaledReader() {
	d, err := shm.OpenDir("")
	need(err)
	name := os.Getenv(envQueue)
	var leave func() error
	if os.Getenv(envKind) == "events" {
		q, err := cq.CreateEvents(cq.Named(d, name), cq.EventOptions{Size: 8, Lifetime: cq.Persistent})
		need(err)
		leave = q.Detach
	} else {
		q, err := cq.Create(cq.Named(d, name), cq.Options{Size: 8, Lifetime: cq.Persistent})
		need(err)
		leave = q.Detach
	}
	pid, err := shmtest.Fork() // it keeps the lock
	need(err)
	say("child %d", pid)
	untilTold()
	need(leave())
}

// TestSignalWithoutReader: where nobody reads, nobody is signaled, whatever the queue holds and
// whoever keeps its lock, and the first read of a successor is its own.
func TestSignalWithoutReader(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"queue", "events"} {
		for _, end := range []string{"left", "killed", "killed, lock kept"} {
			t.Run(kind+" "+end, func(t *testing.T) {
				d, name := openDir(t), queueName(t)
				c := startChild(t, "signaled reader", envQueue+"="+name, envKind+"="+kind)
				endFork := (&other{child: c}).heir(t)
				if end != "killed, lock kept" {
					endFork()
				}
				if end == "left" {
					c.stop(t)
				} else {
					c.kill()
				}
				if end == "killed" {
					eventually(t, "its fork is gone", func() bool {
						sub, err := d.Sub(name, false)
						must(t, err)
						defer sub.Close()
						owned, err := sub.Owned(cq.ReaderFile)
						must(t, err)
						return !owned
					})
				}
				wantErr(t, "signal", cq.SignalQueue(cq.Named(d, name)), cq.ErrPeerGone, unix.ECONNRESET)
				endFork()
				wantSilence(t, d, name, kind)
			})
		}
	}
}

// wantSilence takes the queue over, as soon as its lock is free, and reads once.
func wantSilence(t *testing.T, d *shm.Dir, name, kind string) {
	t.Helper()
	var close func() error
	eventually(t, "the lock is free", func() bool {
		if kind == "events" {
			q, err := cq.OpenEvents(cq.Named(d, name), cq.EventOptions{Existing: true})
			if err != nil {
				return false
			}
			close = q.Close
			_, err = eqSread(q, &cq.Event{}, time.Millisecond)
			wantErr(t, "the first read", err, cq.ErrTimedOut)
			return true
		}
		q, err := cq.Open(cq.Named(d, name), cq.Options{Existing: true})
		if err != nil {
			return false
		}
		close = q.Close
		wantErr(t, "the first read", wait(q, time.Millisecond), cq.ErrTimedOut)
		return true
	})
	must(t, close())
}

func TestSignalQueueCut(t *testing.T) {
	d := openDir(t)
	spec, err := cq.ReaderSpec(queueName(t), cq.Options{Size: 4})
	must(t, err)
	sub, err := d.Sub(queueName(t), true)
	must(t, err)
	reader, err := sub.Create(cq.ReaderFile, spec, nil)
	must(t, err)
	defer func() { must(t, errors.Join(reader.Close(), sub.Close(), os.RemoveAll(sub.Path()))) }()
	poke(scribbler{reader}.section(t, cq.SectQueue, 0), cq.OffState, kind.StateOpen)
	must(t, cq.SignalQueue(cq.Named(d, queueName(t))))
	must(t, os.Truncate(filepath.Join(sub.Path(), cq.ReaderFile), 4096))
	wantErr(t, "cut", cq.SignalQueue(cq.Named(d, queueName(t))), shm.ErrTruncated)
}
