package torture

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// Spoils: what a test has a process do wrong, to see it found.
const (
	spoilMark = "forget the mark of redelivered entries"
	spoilSkip = "release without a look"
)

// read opens the queue when nobody else has it, and reads until it is done.
func (c *child) read() error {
	running, stop := c.running(phaseDrain)
	defer stop()
	o := cq.Options{Size: queueSize, MaxLanes: maxLanes, Lifetime: cq.Persistent}
	for c.words[readerEnded].Load() == 0 {
		open := cq.Open
		if c.words[readerAdoptions].Load() > 0 {
			open = cq.Adopt // once it is destroyed nobody is to make it again
		}
		q, err := open(c.dir, queueName, o)
		switch {
		case errors.Is(err, syscall.EBUSY), errors.Is(err, cq.ErrClosed),
			errors.Is(err, fs.ErrNotExist), errors.Is(err, shm.ErrStale):
			// Somebody has it, or destroys it.
			nap(500 * time.Microsecond)
			continue
		case err != nil:
			return fmt.Errorf("open: %w", err)
		}
		if err := c.have(running, q); err != nil {
			return err
		}
	}
	return nil
}

// have is a reader's time with the queue.
func (c *child) have(running context.Context, q *cq.Queue) error {
	holder := &c.words[readerHolder]
	if former := int(holder.Load()); former != 0 && former != os.Getpid() {
		if survives(former) {
			c.tell(kindUsurped, "got the queue that the living process %d has", former)
		}
		c.notice(noticeAdopted, former)
	}
	holder.Store(uint64(os.Getpid()))
	c.words[readerAdoptions].Add(1)
	done, err := c.drain(running, q)
	holder.Store(0)
	if err != nil {
		return errors.Join(err, q.Detach())
	}
	if !done {
		return q.Detach()
	}
	if err := q.Close(); err != nil {
		return err
	}
	c.words[readerEnded].Store(1)
	return nil
}

// drain reads until it is all over, or this reader leaves by itself.
func (c *child) drain(running context.Context, q *cq.Queue) (done bool, err error) {
	for {
		// It sleeps as long as nobody wakes it: a time limit would be a look that nobody rang for.
		ctx, drain := running, false
		if ctx.Err() != nil {
			drain = true // nobody posts any more
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
		}
		es, err := q.PeekContext(ctx, 1+c.rnd.IntN(64))
		switch {
		case drain && errors.Is(err, context.DeadlineExceeded):
			return true, nil
		case errors.Is(err, context.Canceled):
			continue
		case err != nil:
			return false, fmt.Errorf("peek: %w", err)
		}
		if err := c.take(q, es); err != nil {
			return false, err
		}
		if !drain && c.rnd.IntN(5000) == 0 {
			return false, nil
		}
	}
}

// take looks at what was handed out, perhaps asks for more of it, and releases it in pieces.
func (c *child) take(q *cq.Queue, es []cq.Entry) error {
	left := c.look(es, q.Redelivered())
	if c.rnd.IntN(8) == 0 {
		more, err := q.Peek(1 + c.rnd.IntN(16))
		if err != nil && !errors.Is(err, cq.ErrAgain) {
			return fmt.Errorf("peek: %w", err)
		}
		left += c.look(more, q.Redelivered())
	}
	if c.rnd.IntN(100) == 0 { // so that kills find it with entries in its hands
		nap(time.Duration(c.rnd.IntN(5000)) * time.Microsecond)
	}
	for left > 0 {
		n := left
		if c.rnd.IntN(4) == 0 {
			n = 1 + c.rnd.IntN(left)
		}
		if err := q.Release(n); err != nil {
			return fmt.Errorf("release: %w", err)
		}
		left -= n
	}
	return nil
}

// look compares entries with the ledger, and returns how many there are.
func (c *child) look(es []cq.Entry, marked bool) int {
	if c.Spoil == spoilMark {
		marked = false
	}
	for i := range es {
		if c.Spoil == spoilSkip && c.rnd.IntN(1000) == 0 {
			continue
		}
		c.judge(es[i], marked)
	}
	return len(es)
}

func (c *child) judge(e cq.Entry, marked bool) {
	writer, n, ok := splitSession(e.Data)
	if !ok || e.Tag != mix(e.Data, e.Context) || e.Len != e.Context&0xffff {
		c.tell(kindUnpublished, "nobody posts %+v", e)
		return
	}
	s := sessionOf(c.ledger.region("writer"), writer, n)
	seen, number := s.seen.Load(), e.Context
	switch {
	case number > s.intent.Load():
		c.tell(kindUnpublished, "number %d of writer %d session %d was never committed, only %d",
			number, writer, n, s.intent.Load())
	case number == seen+1:
		s.seen.Store(number)
	case number <= seen && marked:
		c.words[readerRedelivered].Add(1)
	case number <= seen:
		c.tell(kindDuplicate, "number %d of writer %d session %d came again without a mark; "+
			"%d were seen", number, writer, n, seen)
	default:
		s.seen.Store(number)
		c.tellN(kindLost, number-seen-1, "number %d of writer %d session %d came after %d",
			number, writer, n, seen)
	}
}
