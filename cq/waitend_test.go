package cq_test

import (
	"context"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

// TestThresholdOverrun: a lane that overran and was drained in part ends a wait for more.
func TestThresholdOverrun(t *testing.T) {
	for _, take := range []int{3, 4} {
		q, w := pair(t, cq.Options{Size: 4, Overrun: cq.OverrunQueue, Spin: -1})
		post(t, w, 0, 4)
		if err := w.Post(&cq.Entry{}); err != cq.ErrOverrun {
			t.Fatal(err)
		}
		if got := read(t, q, take); len(got) != take {
			t.Fatal(got)
		}
		dst := make([]cq.Context, 4)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for n := take; ; {
			k, err := cq.ReadContext(ctx, q, dst, cq.ReadOptions{Threshold: 3})
			if n += k; err != nil {
				if err != cq.ErrOverrun || n != 4 {
					t.Errorf("after %d of 4: %d, %v", take, n, err)
				}
				break
			}
		}
		if ctx.Err() != nil {
			t.Fatal("it waited for more")
		}
		closeQueue(t, q)
		must(t, w.Close())
	}
}

// TestSpinEnds: looking ends at the deadline and with the context, however long it may last.
func TestSpinEnds(t *testing.T) {
	q, _ := pair(t, cq.Options{Size: 8, Spin: time.Hour})
	dst := make([]cq.Context, 1)
	done := make(chan error, 2)
	go func() {
		_, err := sread(q, dst, 10*time.Millisecond)
		done <- err
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err = cq.ReadContext(ctx, q, dst, cq.ReadOptions{})
		done <- err
	}()
	for _, want := range []error{cq.ErrTimedOut, context.DeadlineExceeded} {
		select {
		case err := <-done:
			wantErr(t, "wait", err, want)
		case <-time.After(time.Minute):
			t.Fatal("it still spins; want ", want)
		}
	}
}
