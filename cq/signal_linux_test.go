package cq_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

func init() { roles["signaler"] = childSignaler }

// childSignaler signals the queue once and says so.
func childSignaler() {
	d, err := shm.OpenDir("")
	need(err)
	need(cq.SignalQueue(d, os.Getenv(envQueue)))
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
	if s := snapshot(t, inspect(t, openDir(t), queueName(t))); len(s.Lanes) != 1 || s.Bell.Signal {
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
	must(t, cq.SignalQueue(d, queueName(t)))
	if got := ep.wait(60_000); len(got) != 1 {
		t.Error("nothing to be seen of the signal")
	}
	wantErr(t, "trywait", q.TryWait(), cq.ErrSignaled)
}

func TestSignalQueueRefuses(t *testing.T) {
	d := openDir(t)
	name := queueName(t)
	wantErr(t, "no queue", cq.SignalQueue(d, name), fs.ErrNotExist)
	wantErr(t, "name", cq.SignalQueue(d, "a/b"), shm.ErrName)
	q, err := cq.Create(d, name, cq.Options{Size: 8, Wait: cq.WaitNone})
	must(t, err)
	wantErr(t, "no wait object", cq.SignalQueue(d, name), cq.ErrNoWait, unix.ENOSYS)
	must(t, q.Close())

	q, err = cq.Create(d, name, cq.Options{Size: 8, Lifetime: cq.Persistent})
	must(t, err)
	must(t, q.Detach())
	must(t, cq.SignalQueue(d, name))
	q, err = cq.Adopt(d, name, cq.Options{})
	must(t, err)
	wantErr(t, "kept for the next reader", wait(q, time.Minute), cq.ErrSignaled)
	must(t, q.Close())
}

func TestSignalQueueCut(t *testing.T) {
	d, reader, _, _ := bareQueue(t)
	must(t, cq.SignalQueue(d, queueName(t)))
	must(t, os.Truncate(filepath.Join(d.Path(), queueName(t), reader.Name()), 4096))
	wantErr(t, "cut", cq.SignalQueue(d, queueName(t)), shm.ErrTruncated)
}
