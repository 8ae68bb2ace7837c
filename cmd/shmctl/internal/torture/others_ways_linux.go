package torture

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// How a reader waits for writers of another user for as long as it has the place.
const (
	othersAlone  = iota // in a read: its thread sleeps on words of the writers
	othersShared        // in a read as one of several goroutines: a relay passes rings on
	othersFD            // on the descriptor, which pipes of lanes make readable
	othersSet           // in a wait set, on the bell of the process, through a relay
	othersLast          // of queues on a channel, likewise; of event queues in a handler
	othersWays
)

// othersMany are so many turns that each way was taken.
const othersMany = 2000

// othersWay draws one, which leads to the step where the process is to die.
func (c *child) othersWay(b *between) int {
	prefix, _, _ := strings.Cut(c.Step, "-")
	if ways := b.toward[prefix]; ways != nil {
		return ways[c.rnd.IntN(len(ways))]
	}
	return c.rnd.IntN(othersWays)
}

// othersReading is a reader's time with its queue.
type othersReading struct {
	othersTurn
	q *cq.Queue
}

// othersQueue makes a queue.
func (c *child) othersQueue() (othersReader, error) {
	b := &queuesBetween
	r := &othersReading{othersTurn: othersTurn{child: c, b: b, way: c.othersWay(b)}}
	o := cq.Options{Size: othersSize, Trust: cq.TrustOthers, MaxLanes: 16, Spin: -1,
		Allow: &shm.AllowList{UIDs: []int{othersWriterUID}}, Shared: r.way == othersShared}
	if r.way == othersFD {
		o.Wait = cq.WaitFD
	}
	var err error
	r.q, err = cq.CreateAnonymous("others", o)
	return r, err
}

func (r *othersReading) held() (q othersHeld, by int) { return r.q, r.way }

func (r *othersReading) wait(ctx context.Context) error {
	wait := [othersWays]func(context.Context) error{r.byRead, r.byRead, r.byDescriptor, r.bySet,
		r.byChannel}[r.way]
	if err := wait(ctx); err != nil {
		return fmt.Errorf("%s: %w", r.b.ways[r.way], err)
	}
	return nil
}

// rest reads what is there when nobody posts any more. The deaths of those that were killed last
// may still have to come.
func (r *othersReading) rest() error {
	for since := lifetime(); ; {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		es, err := r.q.PeekContext(ctx, 1+r.rnd.IntN(64))
		cancel()
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			if r.over(r.q, since) {
				return nil
			}
		case errors.Is(err, cq.ErrWouldBlock):
		case err != nil:
			return err
		default:
			if err := r.take(es); err != nil {
				return err
			}
		}
	}
}

// unlessOver returns err, or nil if it only says that nobody posts any more.
func unlessOver(err error) error {
	return withoutCancel(err)
}

// take looks at what was handed out, and releases it in pieces.
func (r *othersReading) take(es []cq.Entry) error {
	r.plays()
	for i := range es {
		if es[i].Tag != mix(es[i].Data, es[i].Context) {
			r.tell(kindUnpublished, "nobody posts %+v", es[i])
			continue
		}
		r.number(es[i].Data, es[i].Context, es[i].Flags&cq.FlagRedelivered != 0)
	}
	if r.rnd.IntN(50) == 0 { // so that kills find it with entries in its hands
		nap(time.Duration(r.rnd.IntN(5000)) * time.Microsecond)
	}
	for left := len(es); left > 0; {
		n := 1 + r.rnd.IntN(left)
		if err := r.q.Release(n); err != nil {
			return fmt.Errorf("release: %w", err)
		}
		left -= n
	}
	return nil
}

// some reads a little, and reports whether there was nothing.
func (r *othersReading) some() (empty bool, err error) {
	es, err := r.q.Peek(1 + r.rnd.IntN(64))
	if errors.Is(err, cq.ErrWouldBlock) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("peek: %w", err)
	}
	return false, r.take(es)
}

// byRead sleeps in the read for as long as nobody wakes it: a time limit would be a look that
// nobody rang for. The same holds of the other ways.
func (r *othersReading) byRead(ctx context.Context) error {
	for !r.leaves() {
		es, err := r.q.PeekContext(ctx, 1+r.rnd.IntN(64))
		switch {
		case errors.Is(err, cq.ErrWouldBlock):
			continue
		case err != nil:
			return unlessOver(err)
		}
		if err := r.take(es); err != nil {
			return err
		}
	}
	return nil
}

// byDescriptor looks at nothing but the descriptor until that is readable.
func (r *othersReading) byDescriptor(ctx context.Context) error {
	for !r.leaves() && ctx.Err() == nil {
		err := cq.TryWait(r.q)
		if err == nil {
			err = readable(ctx, r.q)
		}
		if err != nil && !errors.Is(err, cq.ErrWouldBlock) {
			return unlessOver(err)
		}
		if _, err := r.some(); err != nil {
			return err
		}
	}
	return nil
}

func (r *othersReading) bySet(ctx context.Context) (err error) {
	s, err := cq.NewWaitSet(nil, cq.WaitSetOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.Add(r.q); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Remove(r.q)) }()
	for dst := make([]cq.Waitable, 1); !r.leaves(); {
		if _, err := s.Wait(ctx, dst); err != nil {
			return unlessOver(err)
		}
		if _, err := r.some(); err != nil {
			return err
		}
	}
	return nil
}

func (r *othersReading) byChannel(ctx context.Context) (err error) {
	ch, err := cq.NewChannel(nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ch.Close()) }()
	if err := ch.Attach(r.q); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ch.Detach(context.Background(), r.q)) }()
	for !r.leaves() {
		if err := ch.Arm(r.q, cq.NotifyAny); err != nil {
			return err
		}
		for empty := false; !empty; {
			if empty, err = r.some(); err != nil {
				return err
			}
		}
		if _, err := ch.Get(ctx); err != nil {
			return unlessOver(err)
		}
		if err := ch.Ack(r.q, 1); err != nil {
			return err
		}
	}
	return nil
}
