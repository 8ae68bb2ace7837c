package torture

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
)

// Several queues with names that one process reads, which waits for all of them at once: with a
// wait set, with its descriptor, with a completion channel, or by a poll set that it asks now and
// then. Writers post to one of them at a time.
const (
	setQueues  = 3
	setWriters = 3
)

func setQueue(i int) string { return fmt.Sprintf("set-%d", i) }

func setReaderRole() *role {
	return &role{name: "set-reader", places: 1, words: heldWords + ways, stops: true, drains: true,
		run: (*child).readSets, with: []string{"set-writer"},
		steps: []crash.Label{crash.DomainTaken, crash.DomainArmed, crash.DomainSleep,
			crash.DomainWoken, crash.NotifyArmed, crash.NotifyFired, crash.ParkStored,
			crash.ParkPaid, crash.PeekStored},
		possession: heldPossession, check: checkHeld("set-reader"),
		sum: func(s *supervisor, r *RoleReport) {
			sumHeld("set-reader")(s, r)
			for i, name := range wayNames {
				r.Counts[name] = s.ledger.region("set-reader")[heldWords+i].Load()
			}
		}}
}

func setWriterRole() *role {
	return &role{name: "set-writer", places: setWriters, words: sessionsLength(setWriters),
		stops: true, run: (*child).writeSets, with: []string{"set-reader"},
		steps: []crash.Label{crash.DomainMarked, crash.DomainRung, crash.RingMarked,
			crash.PublishStored, crash.RingParked, crash.AttachAnnounced},
		died: sessionsDied, settled: sessionsSettled, sum: sumSessions("set-writer"),
		check: checkSessions("set-writer")}
}

func (c *child) writeSets() error {
	return c.sessions(func(name uint64, s session) error {
		w, err := c.attach(setQueue(c.rnd.IntN(setQueues)))
		if w == nil {
			return err
		}
		p := &poster{child: c, w: w, name: name, s: s, next: 1}
		return errors.Join(p.post(), w.Close())
	})
}

// Ways to wait.
const (
	waySet = iota
	wayFD
	wayChannel
	wayPoll
	ways
)

var wayNames = [ways]string{"wait sets", "descriptors", "channels", "poll sets"}

// setReading is a reader's time with all queues.
type setReading struct {
	judge
	qs  [setQueues]*cq.Queue
	way int
	dst [setQueues]cq.Waitable
}

func (c *child) readSets() error {
	r := &setReading{judge: judge{c, c.ledger.sessions("set-writer"), &c.words[heldAgain]}}
	return c.hold(func(make bool) (held, error) { return r, r.open(make) }, r.drain)
}

// open gets all queues, or none.
func (r *setReading) open(make bool) (err error) {
	open := cq.Adopt
	if make {
		open = cq.Open
	}
	for i := range r.qs {
		r.qs[i], err = open(r.dir, setQueue(i), cq.Options{Size: 64, MaxLanes: maxLanes,
			Lifetime: cq.Persistent})
		if err != nil {
			r.qs[i] = nil
			return errors.Join(err, r.Detach())
		}
	}
	return nil
}

func (r *setReading) Detach() error { return r.each((*cq.Queue).Detach) }

func (r *setReading) Close() error { return r.each((*cq.Queue).Close) }

func (r *setReading) each(do func(*cq.Queue) error) (err error) {
	for i, q := range r.qs {
		if q != nil {
			err = errors.Join(err, do(q))
		}
		r.qs[i] = nil
	}
	return err
}

func (r *setReading) drain(running context.Context) (done bool, err error) {
	switch r.way = r.rnd.IntN(ways); {
	case strings.HasPrefix(r.Step, "notify"):
		r.way = wayChannel
	case strings.HasPrefix(r.Step, "domain") && r.way == wayPoll:
		r.way = waySet
	}
	r.words[heldWords+r.way].Add(1)
	wait := []func(context.Context) error{r.bySet, r.byDescriptor, r.byChannel, r.byPoll}[r.way]
	err = wait(running)
	if err = withoutCancel(err); err != nil {
		return false, fmt.Errorf("%s: %w", wayNames[r.way], err)
	}
	if running.Err() == nil {
		return false, nil // it leaves by itself
	}
	for since := lifetime(); ; { // nobody writes any more
		for _, q := range r.qs {
			if err := r.rest(q); err != nil {
				return false, err
			}
		}
		if r.drained(since) {
			return true, nil
		}
	}
}

// withoutCancel returns what is in an error besides the end of a wait that was cancelled: what went
// wrong after it is joined to it.
func withoutCancel(err error) error {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		var rest []error
		for _, one := range e.Unwrap() {
			rest = append(rest, withoutCancel(one))
		}
		return errors.Join(rest...)
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil && withoutCancel(inner) == nil {
			return nil
		}
	}
	if err == context.Canceled {
		return nil
	}
	return err
}

// rest reads a queue until nothing comes for a while.
func (r *setReading) rest(q *cq.Queue) error {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		es, err := q.PeekContext(ctx, 64)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := q.Release(r.look(es)); err != nil {
			return err
		}
	}
}

// leaves tells whether the reader goes now, by itself.
func (r *setReading) leaves() bool { return r.rnd.IntN(3000) == 0 }

// some reads a little of a queue, which may have nothing. It reports whether it is empty.
func (r *setReading) some(q *cq.Queue) (empty bool, err error) {
	es, err := q.Peek(1 + r.rnd.IntN(32))
	if errors.Is(err, cq.ErrWouldBlock) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, q.Release(r.look(es))
}

func (r *setReading) bySet(ctx context.Context) (err error) {
	s, err := cq.NewWaitSet(r.dir, cq.WaitSetOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.leaveSet(s)) }()
	if err := r.enter(s.Add); err != nil {
		return err
	}
	for !r.leaves() {
		n, err := s.Wait(ctx, r.dst[:1+r.rnd.IntN(setQueues)])
		if err != nil {
			return err
		}
		if err := r.ready(n); err != nil {
			return err
		}
	}
	return nil
}

func (r *setReading) enter(add func(cq.Waitable) error) error {
	for _, q := range r.qs {
		if err := add(q); err != nil {
			return err
		}
	}
	return nil
}

func (r *setReading) leaveSet(s interface {
	Remove(cq.Waitable) error
	Close() error
}) (err error) {
	for _, q := range r.qs {
		err = errors.Join(err, s.Remove(q))
	}
	return errors.Join(err, s.Close())
}

// ready reads a little of each queue that was said to have something.
func (r *setReading) ready(n int) error {
	for _, m := range r.dst[:n] {
		if _, err := r.some(m.(*cq.Queue)); err != nil {
			return err
		}
	}
	return nil
}

// byDescriptor looks at nothing but the descriptor until that is readable.
func (r *setReading) byDescriptor(ctx context.Context) (err error) {
	s, err := cq.NewWaitSet(r.dir, cq.WaitSetOptions{Wait: cq.WaitFD})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.leaveSet(s)) }()
	if err := r.enter(s.Add); err != nil {
		return err
	}
	for !r.leaves() {
		err := s.TryWait()
		if err == nil {
			if err := readable(ctx, s); err != nil {
				return err
			}
		} else if !errors.Is(err, cq.ErrWouldBlock) {
			return err
		}
		n, err := s.WaitTimeout(r.dst[:], 0)
		if err != nil && !errors.Is(err, cq.ErrTimedOut) {
			return err
		}
		if err := r.ready(n); err != nil {
			return err
		}
	}
	return nil
}

// readable waits until a descriptor is.
func readable(ctx context.Context, o interface{ GetWait() (cq.Native, error) }) error {
	wait, err := o.GetWait()
	if err != nil {
		return err
	}
	fds := []unix.PollFd{{Fd: int32(wait.FD), Events: unix.POLLIN}}
	for ctx.Err() == nil {
		n, err := unix.Poll(fds, 50)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return ctx.Err()
}

func (r *setReading) byChannel(ctx context.Context) (err error) {
	ch, err := cq.NewChannel(r.dir)
	if err != nil {
		return err
	}
	defer func() {
		for _, q := range r.qs {
			err = errors.Join(err, ch.Detach(context.Background(), q))
		}
		err = errors.Join(err, ch.Close())
	}()
	for _, q := range r.qs {
		if err := ch.Attach(q); err != nil {
			return err
		}
	}
	for _, q := range r.qs {
		if err := r.visit(ch, q); err != nil {
			return err
		}
	}
	for !r.leaves() {
		ev, err := ch.Get(ctx)
		if err != nil {
			return err
		}
		if err := ch.Ack(ev.Queue, 1); err != nil {
			return err
		}
		if err := r.visit(ch, ev.Queue); err != nil {
			return err
		}
	}
	return nil
}

// visit arms a queue and reads it until it is empty.
func (r *setReading) visit(ch *cq.Channel, q *cq.Queue) error {
	if err := ch.Arm(q, cq.NotifyAny); err != nil {
		return err
	}
	for {
		if empty, err := r.some(q); empty || err != nil {
			return err
		}
	}
}

func (r *setReading) byPoll(ctx context.Context) (err error) {
	s, err := cq.NewPollSet(r.dir, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.leaveSet(s)) }()
	if err := r.enter(s.Add); err != nil {
		return err
	}
	for !r.leaves() && ctx.Err() == nil {
		n, err := s.Poll(r.dst[:1+r.rnd.IntN(setQueues)])
		if err != nil {
			return err
		}
		if n == 0 {
			nap(200 * time.Microsecond)
		}
		if err := r.ready(n); err != nil {
			return err
		}
	}
	return nil
}
