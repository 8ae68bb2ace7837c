package cq_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestPostWhileClosing: Close of a writer may come from anywhere, also in the middle of a post.
func TestPostWhileClosing(t *testing.T) {
	shmtest.Long(t)
	d, q := create(t, cq.Options{Size: 1 << 12})
	for range 300 {
		w, err := cq.Attach(t.Context(), d, q.Name(), cq.WriterOptions{})
		must(t, err)
		var all sync.WaitGroup
		all.Go(func() {
			batch := make([]cq.Entry, 512)
			for {
				if _, err := w.PostBatch(batch); err == cq.ErrClosed {
					return
				}
				if err := w.Post(&batch[0]); err == cq.ErrClosed {
					return
				}
			}
		})
		time.Sleep(20 * time.Microsecond)
		must(t, w.Close())
		all.Wait()
		_ = drain(t, q)
	}
}

// TestWriterWhileClosing: neither waits for the other for ever.
func TestWriterWhileClosing(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	for range 300 {
		q, err := cq.Create(d, "closing", cq.Options{Size: 4, MaxLanes: 1, Shared: true})
		must(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				w, err := q.Writer()
				if errors.Is(err, cq.ErrClosed) {
					return
				}
				if err == nil {
					_ = w.Close()
				}
			}
		}()
		for {
			if err := q.Close(); err == nil {
				break
			}
		}
		<-done
	}
}

// TestCreditBesideReserve: room that Reserve handed out is not promised to somebody else.
func TestCreditBesideReserve(t *testing.T) {
	_, w := pair(t, cq.Options{Size: 8})
	a, _, err := w.Reserve(6)
	if err != nil || len(a) != 6 {
		t.Fatal(len(a), err)
	}
	if err := w.Credit(3); err != cq.ErrFull {
		t.Errorf("credit for room that is reserved: %v", err)
	}
	must(t, w.Credit(2))
	clear(a)
	must(t, w.Commit(6))
	for w.Credits() > 0 {
		must(t, w.PostCredited(&cq.Entry{}))
	}
}
