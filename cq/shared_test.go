package cq_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

// TestShared has several goroutines take from one queue in different blocking ways: every entry
// goes to exactly one of them.
func TestShared(t *testing.T) { eachWait(t, sharedReaders) }

func sharedReaders(t *testing.T, o cq.Options) {
	const writers, each = 3, 4000
	o.Shared, o.Size = true, 32
	d, q := create(t, o)
	seen := make([]atomic.Int32, writers*each)
	var left atomic.Int64
	left.Store(writers * each)
	take := func(es []cq.Context) {
		for _, e := range es {
			seen[e.Context].Add(1)
		}
		left.Add(int64(-len(es)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	readers := map[string]func(dst []cq.Context) (int, error){
		"read": func(dst []cq.Context) (int, error) { return cq.Read(q, dst) },
		"context": func(dst []cq.Context) (int, error) {
			return cq.ReadContext(ctx, q, dst,
				cq.ReadOptions{})
		},
		"timeout": func(dst []cq.Context) (int, error) {
			return sread(q, dst, time.Millisecond)
		},
		"threshold": func(dst []cq.Context) (int, error) {
			return sread(q, dst, 2*time.Millisecond, 3)
		},
	}
	var all sync.WaitGroup
	for name, read := range readers {
		all.Go(func() {
			dst := make([]cq.Context, 7)
			for left.Load() > 0 {
				n, err := read(dst)
				if err != nil && !errors.Is(err, syscall.EAGAIN) {
					t.Errorf("%s: %v", name, err)
					return
				}
				if take(dst[:n]); left.Load() <= 0 {
					_ = q.SignalAll() // the others need not wait any longer
				}
			}
		})
	}
	var posters sync.WaitGroup
	for i := range uint64(writers) {
		w := attach(t, d, q.Name())
		posters.Go(func() { postPatiently(t, w, i*each, (i+1)*each) })
	}
	posters.Wait()
	eventually(t, "all are read", func() bool { return left.Load() <= 0 })
	stop := repeatedly(func(uint64) { _ = q.SignalAll() })
	all.Wait()
	stop()
	for i := range seen {
		if n := seen[i].Load(); n != 1 {
			t.Fatalf("entry %d came %d times", i, n)
		}
	}
}

// postPatiently publishes contexts from to to-1, however long the reader takes.
func postPatiently(t *testing.T, w *cq.Writer, from, to uint64) {
	for from < to {
		switch err := w.Post(&cq.Entry{Context: from}); err {
		case nil:
			from++
		case cq.ErrFull:
			time.Sleep(10 * time.Microsecond)
		default:
			t.Error(err)
			return
		}
	}
}

// TestSharedCalls has goroutines call everything else at once, for the race detector.
func TestSharedCalls(t *testing.T) {
	t.Parallel()
	d, q := create(t, cq.Options{Size: 8, Shared: true, Wait: cq.WaitFD, Spin: -1})
	w := attach(t, d, q.Name())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	peek := func() {
		if es, err := q.PeekContext(ctx, 2); err == nil {
			_ = q.Release(len(es))
		}
	}
	calls := []func(){
		func() { _, _ = w.Post(&cq.Entry{}), w.PostError(&cq.ErrorEntry{}) },
		func() { _, _ = cq.Read(q, make([]cq.Msg, 2)) },
		func() { _ = q.ReadErr(&cq.ErrorEntry{}) },
		func() { _ = q.TryWait() },
		func() { _ = q.Signal() },
		func() { _, _ = q.Stats(), w.Stats() },
		peek, peek,
	}
	var all sync.WaitGroup
	for _, call := range calls {
		all.Go(func() {
			for ctx.Err() == nil {
				call()
			}
		})
	}
	all.Wait()
}
