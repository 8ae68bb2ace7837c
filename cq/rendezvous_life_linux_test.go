package cq_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
)

func init() { roles["fast joiner"] = childFastJoiner }

// childFastJoiner posts without end. Every entry says its index.
func childFastJoiner() {
	c, err := socket(3)
	need(err)
	w, err := cq.AttachConn(context.Background(), c, cq.WriterOptions{})
	need(err)
	for round := 0; ; round++ {
		at := w.Next()
		switch err := w.Post(&cq.Entry{Context: at, Data: ^at}); err {
		case nil:
		case cq.ErrFull:
			runtime.Gosched()
		default:
			need(err)
		}
		if round%100 == 99 {
			time.Sleep(100 * time.Microsecond) // the reader falls asleep
		}
	}
}

// TestAnonymousWritersDie kills writers at any moment and replaces them: the lane has no gap and
// nothing twice.
func TestAnonymousWritersDie(t *testing.T) {
	rounds := 15
	if testing.Short() {
		rounds = 4
	}
	q := anonymous(t, cq.Options{Size: 32, MaxLanes: 1, Spin: -1})
	var next atomic.Uint64
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		buf := make([]cq.Data, 16)
		for {
			n, err := cq.ReadContext(ctx, q, buf, cq.ReadOptions{})
			if err != nil {
				done <- err
				return
			}
			for _, e := range buf[:n] {
				if want := next.Add(1) - 1; e.Context != want || e.Data != ^want {
					done <- errors.New("a gap, or an entry twice")
					return
				}
			}
		}
	}()
	for range rounds {
		c, conn := startWithSocket(t, "fast joiner")
		must(t, q.Accept(soon(t), conn))
		from := next.Load()
		eventually(t, "entries come", func() bool { return next.Load() > from+100 })
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
		c.kill()
	}
	cancel()
	wantErr(t, "reader", <-done, context.Canceled)
}

// TestAnonymousContested has more writers than lanes come and go at once, while the queue is read,
// until it is closed under their hands.
func TestAnonymousContested(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 16, MaxLanes: 3, Spin: -1})
	var posted, attached atomic.Uint64
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			for {
				a, b := connect(t, unix.SOCK_SEQPACKET)
				accepted := accept(soon(t), q, a)
				w, err := cq.AttachConn(soon(t), b, cq.WriterOptions{})
				err = errors.Join(err, <-accepted, a.Close(), b.Close())
				if errors.Is(err, context.DeadlineExceeded) { // one side was not told
					t.Error(err)
				}
				if err != nil {
					if errors.Is(err, cq.ErrClosed) {
						return
					}
					if !errors.Is(err, cq.ErrLanes) {
						t.Error(err)
						return
					}
					runtime.Gosched()
					continue
				}
				attached.Add(1)
				for range 3 {
					if err = w.Post(&cq.Entry{}); err == nil {
						posted.Add(1)
					} else if err != cq.ErrFull && err != cq.ErrClosed {
						t.Error(err)
					}
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	got := uint64(0)
	buf := make([]cq.Context, 16)
	for got < 600 {
		n, err := cq.ReadContext(soon(t), q, buf, cq.ReadOptions{})
		must(t, err)
		got += uint64(n)
	}
	must(t, q.Close())
	all.Wait()
	if got > posted.Load() {
		t.Errorf("%d entries of %d", got, posted.Load())
	}
	noMemfds(t)
}
