package cq_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

func init() { roles["poor opener"] = childPoorOpener }

// TestFewDescriptorsToOpen: a queue that cannot be made or adopted because the last descriptors
// went on the way leaves nobody behind who looks for its lanes later, in memory that is gone.
func TestFewDescriptorsToOpen(t *testing.T) {
	t.Parallel()
	poorChild(t, "poor opener")
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
		sweep("adopt with "+o.Wait.String(), func() (err error) {
			q, err = cq.Adopt(d, "q", o)
			return err
		}, func() {})
		need(errors.Join(w.Close(), q.Close()))
	}
	time.Sleep(200 * time.Millisecond) // whoever was left behind comes now
	need(errors.Join(set.Close(), d.Close()))
	need(os.RemoveAll(d.Path()))
	say("done")
}
