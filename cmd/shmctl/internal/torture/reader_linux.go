package torture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
)

// Spoils: what a test has a process do wrong, to see it found.
const (
	spoilMark = "forget the mark of redelivered entries"
	spoilSkip = "release without a look"
)

// reader is a process that has the queue with a name for a while.
type reader struct {
	judge
	q  *cq.Queue
	eq *cq.EventQueue
}

// read opens the queue when nobody else has it, and reads until it is done.
func (c *child) read() (err error) {
	r := &reader{judge: judge{c, c.ledger.sessions("writer"), &c.words[heldAgain]}}
	eq, end, err := c.mourning()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	r.eq = eq
	o := cq.Options{Size: queueSize, MaxLanes: maxLanes, Lifetime: cq.Persistent}
	return c.hold(func(make bool) (held, error) {
		open := cq.Adopt
		if make {
			open = cq.Open
		}
		q, err := open(c.dir, queueName, o)
		r.q = q
		return q, err
	}, r.drain)
}

// drain reads until it is all over, or this reader leaves by itself.
func (r *reader) drain(running context.Context) (done bool, err error) {
	if err := r.q.BindEvents(r.eq); err != nil {
		return false, err
	}
	r.bound()
	defer r.unbound()
	var since time.Duration
	for {
		// It sleeps as long as nobody wakes it: a time limit would be a look that nobody rang for.
		ctx, drain := running, false
		if ctx.Err() != nil {
			drain = true // nobody posts any more
			since = cmp.Or(since, lifetime())
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
		}
		es, err := r.q.PeekContext(ctx, 1+r.rnd.IntN(64))
		switch {
		case drain && errors.Is(err, context.DeadlineExceeded):
			if r.drained(since) {
				return true, nil
			}
			continue
		case errors.Is(err, context.Canceled):
			continue
		case err != nil:
			return false, fmt.Errorf("peek: %w", err)
		}
		if err := r.take(es); err != nil {
			return false, err
		}
		if !drain && r.rnd.IntN(r.stay()) == 0 {
			return false, nil
		}
	}
}

// stay is how many times a reader takes something before it leaves, about.
func (r *reader) stay() int {
	if r.Step == crash.DetachSilenced.String() || r.Step == crash.ClaimLeft.String() {
		return 50
	}
	return 5000
}

// take looks at what was handed out, perhaps asks for more of it, and releases it in pieces.
func (r *reader) take(es []cq.Entry) error {
	left := r.look(es)
	if r.rnd.IntN(8) == 0 {
		more, err := r.q.Peek(1 + r.rnd.IntN(16))
		if err != nil && !errors.Is(err, cq.ErrWouldBlock) {
			return fmt.Errorf("peek: %w", err)
		}
		left += r.look(more)
	}
	if r.rnd.IntN(100) == 0 { // so that kills find it with entries in its hands
		nap(time.Duration(r.rnd.IntN(5000)) * time.Microsecond)
	}
	for left > 0 {
		n := left
		if r.rnd.IntN(4) == 0 {
			n = 1 + r.rnd.IntN(left)
		}
		if err := r.q.Release(n); err != nil {
			return fmt.Errorf("release: %w", err)
		}
		left -= n
	}
	return nil
}

// look compares entries with the ledger, and returns how many there are.
func (j *judge) look(es []cq.Entry) int {
	for i := range es {
		if j.Spoil == spoilSkip && j.rnd.IntN(1000) == 0 {
			continue
		}
		j.entry(es[i], es[i].Flags&cq.FlagRedelivered != 0 && j.Spoil != spoilMark)
	}
	return len(es)
}

// entry judges an entry of a poster.
func (j *judge) entry(e cq.Entry, marked bool) {
	if e.Tag != mix(e.Data, e.Context) || e.Len != e.Context&0xffff {
		j.tell(kindUnpublished, "nobody posts %+v", e)
		return
	}
	j.number(e.Data, e.Context, marked)
}
