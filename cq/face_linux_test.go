package cq_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// epoll is the user's own, waiting on queues' descriptors.
type epoll struct {
	t  testing.TB
	fd int
}

func newEpoll(t testing.TB, events uint32, qs ...*cq.Queue) epoll {
	t.Helper()
	fd := shmtest.Got(unix.EpollCreate1(unix.EPOLL_CLOEXEC)).Or(t)
	t.Cleanup(func() { _ = unix.Close(fd) })
	for i, q := range qs {
		ev := unix.EpollEvent{Events: events, Fd: int32(i)}
		must(t, unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, waitFD(q), &ev))
	}
	return epoll{t, fd}
}

// wait returns which queues became ready within some milliseconds.
func (e epoll) wait(ms int) []int {
	e.t.Helper()
	var evs [4]unix.EpollEvent
	for {
		n, err := unix.EpollWait(e.fd, evs[:], ms)
		if err == unix.EINTR {
			continue
		}
		must(e.t, err)
		var out []int
		for _, ev := range evs[:n] {
			out = append(out, int(ev.Fd))
		}
		return out
	}
}

// TestFDFallback: where a writer cannot get the reader's descriptor it writes to the queue's FIFO,
// from the reader's own lane as well.
func TestFDFallback(t *testing.T) {
	for _, face := range []uint64{0, 1 << 40, 60_000, ^uint64(0)} {
		t.Run(fmt.Sprint(face), func(t *testing.T) {
			d, q := create(t, cq.Options{Size: 8, Wait: cq.WaitFD})
			words := scribble(t, d, q.Name(), cq.ReaderFile).section(t, cq.SectQueue, 0)
			poke(words, cq.OffFace, face)
			w := attach(t, d, q.Name())
			own := shmtest.Have(q.Writer()).In(t)
			ep := newEpoll(t, unix.EPOLLIN, q)
			for i, w := range []*cq.Writer{w, own, w} {
				for q.TryWait() != nil {
					_ = drain(t, q)
				}
				if ep.wait(0) != nil {
					t.Fatal("readable")
				}
				post(t, w, uint64(i), uint64(i)+1)
				if ep.wait(60_000) == nil {
					t.Fatalf("post %d through the FIFO is not seen", i)
				}
			}
		})
	}
}

func init() { roles["no quota"] = childNoQuota }

func childNoQuota() {
	need(shmtest.Forbid(unix.SYS_MKNODAT, unix.EDQUOT))
	d := shmtest.Needs(shm.OpenDir(""))
	_, err := cq.Create(cq.Named(d, os.Getenv(envQueue)), cq.Options{Wait: cq.WaitFD})
	say("%v %v", errors.Is(err, shm.ErrNoSpace), errors.Is(err, unix.EDQUOT))
}

// TestFIFOQuota: a quota that has no file left for the FIFO of a queue is want of room.
func TestFIFOQuota(t *testing.T) {
	t.Parallel()
	startChild(t, "no quota", envQueue+"="+queueName(t)).Says(t, "true true")
}

// TestFDOfSuccessor: a writer that rang one reader's descriptor finds the next one's. It rings none
// of a reader that has left, whose numbers mean other things.
func TestFDOfSuccessor(t *testing.T) {
	d, q := create(t, cq.Options{Size: 8, Wait: cq.WaitFD})
	w := attach(t, d, q.Name())
	for i := range uint64(4) {
		ep := newEpoll(t, unix.EPOLLIN, q)
		for q.TryWait() != nil {
			_ = drain(t, q)
		}
		post(t, w, i, i+1)
		if ep.wait(60_000) == nil {
			t.Fatalf("reader %d sleeps on", i)
		}
		for q.TryWait() != nil {
			_ = drain(t, q)
		}
		must(t, q.Detach())
		var files []*os.File // take over the numbers that are free now
		for range 8 {
			files = append(files, shmtest.Have(os.CreateTemp(t.TempDir(), "")).In(t))
		}
		post(t, w, i, i+1)
		for _, f := range files {
			if i, err := f.Stat(); err != nil || i.Size() != 0 {
				t.Errorf("a writer wrote %d bytes into a file of this process (%v)", i.Size(), err)
			}
		}
		q = shmtest.Got(cq.Open(cq.Named(d, q.Name()), cq.Options{Existing: true})).Or(t)
	}
	closeQueue(t, q)
}

func init() {
	roles["signaled reader"] = childSignaledReader
}

func TestSignalQueueRefuses(t *testing.T) {
	d := openDir(t)
	name := queueName(t)
	wantErr(t, "no queue", cq.SignalQueue(cq.Named(d, name)), fs.ErrNotExist)
	wantErr(t, "name", cq.SignalQueue(cq.Named(d, "a/b")), shm.ErrName)
	shmtest.Have(cq.Create(cq.Named(d, name), cq.Options{Size: 8, Wait: cq.WaitNone})).In(t)
	wantErr(t, "no wait object", cq.SignalQueue(cq.Named(d, name)), cq.ErrNoWait, unix.ENOSYS)
}

// childSignaledReader has a queue, or an event queue, and leaves it or is killed over it.
func childSignaledReader() {
	d := shmtest.Needs(shm.OpenDir(""))
	name := os.Getenv(envQueue)
	var leave func() error
	if os.Getenv(envKind) == "events" {
		q, err := cq.CreateEvents(cq.Named(d, name), cq.EventOptions{Size: 8, Lifetime: cq.Persistent})
		need(err)
		leave = q.Detach
	} else {
		q := shmtest.Needs(cq.Create(cq.Named(d, name), cq.Options{Size: 8, Lifetime: cq.Persistent}))
		leave = q.Detach
	}
	pid, err := shmtest.Fork() // it keeps the lock
	need(err)
	say("child %d", pid)
	untilTold()
	need(leave())
}

// TestSignalWithoutReader: where nobody reads, nobody is signaled, whatever the queue holds and
// whoever keeps its lock, and the first read of a successor is its own. So it is with a signal that
// its reader left.
func TestSignalWithoutReader(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"queue", "events"} {
		for _, end := range []string{"left", "killed", "killed, lock kept"} {
			t.Run(kind+" "+end, func(t *testing.T) {
				d, name := openDir(t), queueName(t)
				c := startChild(t, "signaled reader", envQueue+"="+name, envKind+"="+kind)
				endFork := c.heir(t)
				if end != "killed, lock kept" {
					endFork()
				}
				if end == "left" {
					c.Stop(t)
				} else {
					c.Kill()
				}
				if end == "killed" {
					eventually(t, "its fork is gone", func() bool {
						sub := shmtest.Have(d.Sub(name, false)).In(t)
						owned := shmtest.Got(sub.Owned(cq.ReaderFile)).Or(t)
						return !owned
					})
				}
				wantErr(t, "signal", cq.SignalQueue(cq.Named(d, name)), cq.ErrPeerGone, unix.ECONNRESET)
				hints := scribble(t, d, name, cq.ReaderFile).section(t, cq.SectHints, 0)
				if hints[wake.HintsLatchOffset] != 0 {
					t.Error("the signal stays")
				}
				hints[wake.HintsLatchOffset] = 1
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
	spec := shmtest.Got(cq.ReaderSpec(queueName(t), cq.Options{Size: 4})).Or(t)
	sub := shmtest.Got(d.Sub(queueName(t), true)).Or(t)
	reader := shmtest.Got(sub.Create(cq.ReaderFile, spec, nil)).Or(t)
	defer func() { must(t, errors.Join(reader.Close(), sub.Close(), os.RemoveAll(sub.Path()))) }()
	poke(scribbler{reader}.section(t, cq.SectQueue, 0), cq.OffState, kind.StateOpen)
	must(t, cq.SignalQueue(cq.Named(d, queueName(t))))
	must(t, os.Truncate(filepath.Join(sub.Path(), cq.ReaderFile), 4096))
	wantErr(t, "cut", cq.SignalQueue(cq.Named(d, queueName(t))), shm.ErrTruncated)
}
