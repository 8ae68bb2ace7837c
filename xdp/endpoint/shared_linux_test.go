package endpoint_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

// TestShared: many goroutines use an endpoint that another one runs, until one of them closes it.
func TestShared(t *testing.T) {
	shmtest.Conforms(t)
	a, b := newPair(t, func(o *options) {
		o.umem.Frames = 256
		o.queue = cq.Options{Shared: true}
		o.config = func(c *endpoint.Config) {
			c.Shared = true
			hop, _ := c.Resolver.Lookup(o.peer.Addr())
			c.Resolver = endpoint.Static{o.peer.Addr(): hop}
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	var sent, received, answered atomic.Int64
	for _, s := range []*side{a, b} {
		all.Go(func() {
			if err := s.Run(ctx); !errors.Is(err, os.ErrClosed) {
				t.Errorf("Run of %s: %v", s.name, err)
			}
		})
		for range 2 {
			all.Go(func() { s.reader(ctx, t, &received, &answered) })
		}
		for i := range 3 {
			all.Go(func() { s.sender(t, i, &sent) })
		}
		all.Go(func() {
			for s.Stats().Frames.Sum() == 256 && ctx.Err() == nil {
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	for deadline := time.Now().Add(patience); received.Load() < 4000; {
		time.Sleep(time.Millisecond)
		if time.Now().After(deadline) {
			t.Fatalf("%d received", received.Load())
		}
	}
	var closers sync.WaitGroup
	for _, s := range []*side{a, b} {
		for range 2 {
			closers.Go(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	closers.Wait()
	for deadline := time.Now().Add(patience); answered.Load() < sent.Load(); {
		time.Sleep(time.Millisecond)
		if time.Now().After(deadline) {
			break
		}
	}
	stop()
	all.Wait()
	if answered.Load() != sent.Load() {
		t.Errorf("%d sends, %d answers", sent.Load(), answered.Load())
	}
}

// sender posts in all ways until the endpoint is closed.
func (s *side) sender(t *testing.T, way int, sent *atomic.Int64) {
	for {
		var err error
		switch way {
		case 0:
			err = s.Send([]byte("send"), s.peer, 1)
		case 1:
			var f endpoint.Frame
			if f, err = s.Frame(); err == nil {
				if err = s.SendFrame(f, copy(f.Bytes(), "frame"), s.peer, 1); err != nil {
					if e := s.AbandonFrame(f); e != nil && !errors.Is(err, os.ErrClosed) {
						t.Error(e)
					}
				}
			}
		default:
			if err = s.Inject([]byte("inject"), s.peer); err == nil {
				sent.Add(-1)
			}
		}
		switch {
		case err == nil:
			sent.Add(1)
		case errors.Is(err, os.ErrClosed):
			return
		case errors.Is(err, syscall.EAGAIN):
			time.Sleep(20 * time.Microsecond)
		default:
			t.Error(err)
			return
		}
	}
}

// reader takes completions and gives frames back, until it is told to stop.
func (s *side) reader(ctx context.Context, t *testing.T, received, answered *atomic.Int64) {
	var es [16]cq.Entry
	for {
		n, err := cq.ReadContext(ctx, s.q, es[:], cq.ReadOptions{})
		if errors.Is(err, cq.ErrAvail) {
			var e cq.ErrorEntry
			if s.q.ReadErr(&e) == nil {
				answered.Add(1)
			}
			continue
		}
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			return
		}
		for i := range es[:n] {
			if es[i].Flags&cq.FlagSend != 0 {
				answered.Add(1)
			} else {
				received.Add(1)
			}
		}
		if err := s.ReleaseBatch(es[:n]); err != nil && !errors.Is(err, xdp.ErrFrame) {
			t.Error(err)
		}
	}
}
