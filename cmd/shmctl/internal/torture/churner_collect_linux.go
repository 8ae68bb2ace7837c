package torture

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/shm"
)

// collect removes a queue that nobody has, or everything that is garbage.
func (c *churner) collect(name string) error {
	if c.rnd.IntN(2) == 0 {
		err := cq.Remove(c.dir, name)
		if contended(err) {
			return nil
		}
		return err
	}
	all, err := ctl.Collect(c.dir, ctl.CollectOptions{Remove: true})
	for _, r := range all {
		if r.Fate == ctl.FateDamaged || r.Fate == ctl.FateFailed {
			c.tell("", "collect %s: %s: %s", r.Name, r.Fate, r.Error.Message)
		}
	}
	return err
}

// graveNames are of the queue and the counter that one churner makes for itself to collect. Its
// predecessor may have left them.
func graveNames(i int) (queue, counter string) {
	return fmt.Sprintf("grave-%d", i), fmt.Sprintf("grave-%d-count", i)
}

// exhume removes what the dead left under those names.
func exhume(d *shm.Dir, i int) (left []string) {
	queue, counter := graveNames(i)
	left = collect(d, queue)
	if err := cq.Remove(d, counter); err != nil && !contended(err) {
		left = append(left, fmt.Sprintf("%s cannot be removed: %v", counter, err))
	}
	return left
}

// bury makes a queue and a counter that wait for a successor, and collects them: past every step of
// a collector, without anybody's death before.
func (c *churner) bury() error {
	queue, counter := graveNames(c.Index)
	left := exhume(c.dir, c.Index)
	for since := lifetime(); len(left) > 0 && lifetime()-since < patience; {
		nap(time.Millisecond) // others may be at it
		left = exhume(c.dir, c.Index)
	}
	for _, problem := range left {
		c.tell("", "%s", problem)
	}
	if err := errors.Join(c.leaveQueue(queue), c.leaveCounter(counter)); err != nil {
		return err
	}
	return errors.Join(uncontended(cq.Remove(c.dir, queue)), uncontended(cq.Remove(c.dir, counter)))
}

// uncontended is an error that other collectors, who lock what they look at, cannot cause.
func uncontended(err error) error {
	if contended(err) {
		return nil
	}
	return err
}

// leaveQueue makes a queue that was read to the end, and whose writer and reader have left.
func (c *churner) leaveQueue(name string) error {
	o := cq.Options{Size: 16, MaxLanes: 4}
	if c.rnd.IntN(2) == 0 {
		o.Lifetime = cq.Persistent
	}
	q, err := cq.Create(c.dir, name, o)
	if err != nil {
		return uncontended(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w, err := cq.Attach(ctx, c.dir, name, cq.WriterOptions{})
	if errors.Is(err, cq.ErrLanes) || errors.Is(err, cq.ErrBusy) {
		return q.Close()
	}
	if err != nil {
		return errors.Join(err, q.Close())
	}
	err = errors.Join(w.Post(&cq.Entry{Context: 1}), w.Close())
	_, readErr := cq.ReadContext(context.Background(), q, make([]cq.Context, 1),
		cq.ReadOptions{Timeout: patience})
	err = errors.Join(err, readErr)
	return errors.Join(err, q.Detach())
}

// crowdedName is of the queue that one churner makes where somebody removes empty directories.
func crowdedName(i int) string { return fmt.Sprintf("crowded-%d", i) }

// crowded makes queues beside one who tidies up in their place without end: some of them can be
// made only aside, and moved there.
func (c *churner) crowded() (err error) {
	name := crowdedName(c.Index)
	tidied := make(chan struct{})
	var over atomic.Bool
	go func() {
		defer close(tidied)
		for !over.Load() {
			_ = c.dir.RemoveSub(name) // unless there is something in it
		}
	}()
	for range crowdedQueues {
		var q *cq.Queue
		q, err = cq.Create(c.dir, name, cq.Options{Size: 16, MaxLanes: 4})
		if err == nil {
			err = q.Close()
		}
		if err != nil {
			break
		}
	}
	over.Store(true)
	<-tidied
	if err == nil || contended(err) { // by collectors, over what a predecessor left there
		return nil
	}
	return fmt.Errorf("a queue beside one who tidies up: %w", err)
}

func (c *churner) leaveCounter(name string) error {
	count, err := cq.CreateCounter(c.dir, name, cq.CounterOptions{Lifetime: cq.Persistent})
	if err != nil {
		return uncontended(err)
	}
	return count.Close()
}
