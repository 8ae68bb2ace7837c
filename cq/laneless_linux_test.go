package cq_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["poor reader"] = childPoorReader }

// TestLaneWithoutDescriptors: a reader that can open no file for the lane of a writer says so, and
// gets what is in it when it can, though nobody rings any more.
func TestLaneWithoutDescriptors(t *testing.T) {
	shmtest.Long(t)
	poorChild(t, "poor reader")
}

// poorChild reports what a child complains of that lacks descriptors, in a directory of its own.
func poorChild(t *testing.T, role string) {
	t.Helper()
	c := startChild(t, role, "SHMRING_DIR="+openDir(t).Path()+"/poor")
	complaints(t, c)
	_ = c.stop(t)
}

func childPoorReader() {
	d, err := shm.OpenDir("")
	need(err)
	set, err := cq.NewWaitSet(d, cq.WaitSetOptions{})
	need(err)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for i, read := range []func(q *cq.Queue, dst []cq.Context) (int, error){
		func(q *cq.Queue, dst []cq.Context) (int, error) {
			return cq.ReadContext(ctx, q, dst,
				cq.ReadOptions{})
		},
		func(q *cq.Queue, dst []cq.Context) (int, error) {
			_, err := set.Wait(ctx, make([]cq.Waitable, 1), cq.WaitOptions{})
			need(err)
			return cq.Read(q, dst)
		},
		func(q *cq.Queue, dst []cq.Context) (n int, err error) {
			for {
				n, err = cq.Read(q, dst)
				if !errors.Is(err, cq.ErrWouldBlock) || ctx.Err() != nil {
					return n, err
				}
				time.Sleep(time.Millisecond)
			}
		},
	} {
		q, err := cq.Create(d, "q", cq.Options{Size: 8})
		need(err)
		w, err := cq.Attach(ctx, d, "q", cq.WriterOptions{})
		need(err)
		need(set.Add(q))
		need(w.Post(&cq.Entry{Context: 7}))
		dst := make([]cq.Context, 2)
		for range 3 { // it says so again and again
			fillGaps()
			limit(0)
			n, err := read(q, dst)
			limit(4096)
			if n != 0 || !errors.Is(err, syscall.EMFILE) || errors.Is(err, cq.ErrCorrupt) ||
				!errors.As(err, new(*cq.LaneError)) {
				say("way %d: without descriptors it read %d, %v", i, n, err)
			}
		}
		if n, err := read(q, dst); n != 1 || err != nil || dst[0].Context != 7 {
			say("way %d: with descriptors it read %d, %v", i, n, err)
		}
		if st := q.Stats(); st.GivenUp != 0 {
			say("way %d: %d lanes are given up", i, st.GivenUp)
		}
		need(errors.Join(set.Remove(q), w.Close(), q.Close()))
	}
	need(errors.Join(set.Close(), d.Close()))
	need(os.RemoveAll(d.Path()))
	say("done")
}
