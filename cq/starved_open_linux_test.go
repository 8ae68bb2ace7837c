package cq_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

func init() { roles["poor opener"] = childPoorOpener }

// TestFewDescriptorsToOpen: a queue that cannot be made or adopted because the last descriptors
// went on the way leaves nobody behind who looks for its lanes later, in memory that is gone.
func TestFewDescriptorsToOpen(t *testing.T) {
	c := startChild(t, "poor opener", "SHMRING_DIR="+openDir(t).Path()+"/poor")
	complaints(t, c)
	_ = c.stop(t)
}

func childPoorOpener() {
	d, err := shm.OpenDir("")
	need(err)
	set, err := cq.NewWaitSet(d, cq.WaitSetOptions{})
	need(err)
	for _, o := range []cq.Options{
		{Wait: cq.WaitMutexCond}, {Wait: cq.WaitFD}, {Wait: cq.WaitInSet, WaitSet: set},
	} {
		o.Size, o.Lifetime = 8, cq.Persistent
		q, err := cq.Create(d, "q", o)
		need(err)
		w, err := cq.Attach(context.Background(), d, "q", cq.WriterOptions{})
		need(err)
		need(w.Post(&cq.Entry{Context: 7}))
		need(q.Detach()) // whoever adopts it has a lane to open
		for more := 0; ; more++ {
			fillGaps()
			limit(uint64(len(openFiles()) + more))
			q, err = cq.Adopt(d, "q", o)
			limit(4096)
			if err == nil {
				if more == 0 {
					say("%v: no descriptor is needed", o.Wait)
				}
				break
			}
			if !errors.Is(err, syscall.EMFILE) {
				say("%v with %d descriptors: %v", o.Wait, more, err)
			}
		}
		need(errors.Join(w.Close(), q.Close()))
	}
	time.Sleep(200 * time.Millisecond) // whoever was left behind comes now
	need(errors.Join(set.Close(), d.Close()))
	need(os.RemoveAll(d.Path()))
	say("done")
}
