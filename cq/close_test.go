package cq_test

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestCloseEndsWaits closes a queue under goroutines that block in it, in every way to block.
func TestCloseEndsWaits(t *testing.T) {
	kinds := map[string]func(*cq.Queue) error{
		"timeout": func(q *cq.Queue) error {
			_, err := sread(q, make([]cq.Msg, 1), -1)
			return err
		},
		"context": func(q *cq.Queue) error {
			_, err := cq.ReadContext(t.Context(), q, make([]cq.Msg, 1), cq.ReadOptions{})
			return err
		},
		"threshold": func(q *cq.Queue) error {
			_, err := sread(q, make([]cq.Msg, 1), -1, 3)
			return err
		},
		"peek": func(q *cq.Queue) error {
			_, err := q.PeekContext(t.Context(), 1)
			return err
		},
	}
	for name, block := range kinds {
		t.Run(name, func(t *testing.T) {
			eachWait(t, func(t *testing.T, o cq.Options) {
				for _, waiters := range []int{1, 3} {
					o.Shared = waiters > 1
					d, q := create(t, o)
					w := attach(t, d, q.Name())
					var all sync.WaitGroup
					var wrong atomic.Value
					for range waiters {
						all.Go(func() {
							if err := block(q); err != cq.ErrClosed {
								wrong.Store(err)
							}
						})
					}
					time.Sleep(3 * time.Millisecond)
					must(t, q.Close())
					all.Wait()
					if err := wrong.Load(); err != nil {
						t.Errorf("%d waiters: %v", waiters, err)
					}
					must(t, w.Close())
				}
			})
		})
	}
}

// TestCloseWaits: Close comes at any moment of a busy reader and a busy writer, and neither sees
// memory that is gone.
func TestCloseWaits(t *testing.T) {
	shmtest.Long(t)
	for range 60 {
		d, q := create(t, cq.Options{Size: 8, Spin: -1})
		w := attach(t, d, q.Name())
		var all sync.WaitGroup
		all.Go(func() {
			for w.Post(&cq.Entry{}) != cq.ErrClosed {
			}
		})
		all.Go(func() {
			dst := make([]cq.Msg, 3)
			for {
				if _, err := sread(q, dst, time.Microsecond); err == cq.ErrClosed {
					return
				}
			}
		})
		all.Go(func() {
			for q.Signal() == nil {
				_ = q.Stats()
				_ = w.Stats()
			}
		})
		time.Sleep(100 * time.Microsecond)
		all.Go(func() {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
		must(t, q.Close())
		all.Wait()
	}
}

// TestCloseWithLoans: entries that are handed out keep the queue open, and working.
func TestCloseWithLoans(t *testing.T) {
	for name, end := range map[string]func(*cq.Queue) error{"close": (*cq.Queue).Close,
		"detach": (*cq.Queue).Detach} {
		_, q := create(t, cq.Options{Size: 4})
		w, err := q.Writer()
		must(t, err)
		post(t, w, 0, 3)
		must(t, w.Close())
		es, err := q.Peek(2)
		must(t, err)
		wantErr(t, name, end(q), cq.ErrBusy, syscall.EBUSY)
		must(t, q.Release(1))
		wantErr(t, name, end(q), cq.ErrBusy)
		if es[1].Context != 1 {
			t.Error("the entry is gone")
		}
		if _, err := q.Peek(1); err != nil {
			t.Errorf("the queue works on: %v", err)
		}
		must(t, q.Release(2))
		must(t, end(q))
		if name == "detach" {
			d := openDir(t)
			q, err := cq.Open(cq.Named(d, q.Name()), cq.Options{Existing: true})
			must(t, err)
			must(t, q.Close())
		}
	}
}

// TestRefusedCloseDisturbsNobody: a goroutine that waits does not notice a Close that fails.
func TestRefusedCloseDisturbsNobody(t *testing.T) {
	d, q := create(t, cq.Options{Size: 4, Shared: true, Spin: -1})
	w := attach(t, d, q.Name())
	post(t, w, 0, 1)
	_, err := q.Peek(1)
	must(t, err)
	end := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			if _, err := q.Peek(1); err != cq.ErrWouldBlock {
				end <- err
				return
			}
			if ctx.Err() != nil {
				end <- nil
				return
			}
		}
	}()
	for range 200 {
		wantErr(t, "close", q.Close(), cq.ErrBusy)
	}
	cancel()
	if err := <-end; err != nil {
		t.Errorf("somebody saw %v", err)
	}
	must(t, q.Release(1))
}
