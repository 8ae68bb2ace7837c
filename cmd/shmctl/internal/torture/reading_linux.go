package torture

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

// Spoils: what a test has a process do wrong, to see it found.
const (
	spoilMark = "forget the mark of redelivered entries"
	spoilSkip = "release without a look"
)

// checker compares what a reader gets with the ledger.
type checker struct {
	*child
	of    sessions
	again *atomic.Uint64 // what came again, marked
	mine  uint64         // between users: the generation of its queue
	plays *atomic.Uint64 // how often something was read in the reader's way; nil when it is counted
}

// checks returns the checker of a reader of what the first role writes that it comes with.
func (c *child) checks() *checker {
	return &checker{child: c, of: c.ledger.sessions(c.role.with[0]), again: &c.words[heldAgain]}
}

// drained tells whether a look at nothing that took until its deadline was the last one: a process
// that could not run looked at little, and what the dead left may still have to be found. since is
// when nobody wrote any more, of lifetime.
func (j *checker) drained(since time.Duration) bool {
	all := true
	j.of.each(func(_ int, _ uint64, s session) {
		mine := j.mine == 0 || s.reader.Load() == j.mine
		all = all && !(mine && s.seen.Load() < s.published.Load())
	})
	return all || stage.Lifetime()-since > patience/4
}

// number checks one entry, which is whole.
func (j *checker) number(name, number uint64, marked bool) {
	if j.plays != nil {
		j.plays.Add(1)
		j.plays = nil
	}
	s, ok := j.of.named(name)
	if !ok {
		j.tell(kindUnpublished, "no writer is %#x", name)
		return
	}
	switch seen := s.seen.Load(); {
	case number > s.intent.Load():
		j.tell(kindUnpublished, "number %d of session %#x was never committed, only %d", number, name,
			s.intent.Load())
	case number == seen+1:
		s.seen.Store(number)
	case number <= seen && marked && j.Spoil != spoilMark:
		j.again.Add(1)
	case number <= seen:
		j.tell(kindDuplicate, "number %d of session %#x came again without a mark; %d were seen",
			number, name, seen)
	default:
		s.seen.Store(number)
		j.tellN(kindLost, number-seen-1, "number %d of session %#x came after %d", number, name, seen)
	}
}

// skips tells whether one is not looked at, to see that found.
func (j *checker) skips() bool { return j.Spoil == spoilSkip && j.rnd.IntN(1000) == 0 }

// entry checks an entry of a poster.
func (j *checker) entry(e *cq.Entry) {
	if e.Tag != mix(e.Data, e.Context) || e.Len != e.Context&0xffff {
		j.tell(kindUnpublished, "nobody posts %+v", *e)
		return
	}
	j.number(e.Data, e.Context, e.Flags&cq.FlagRedelivered != 0)
}

// look compares entries with the ledger, and returns how many there are.
func (j *checker) look(es []cq.Entry) int {
	for i := range es {
		if !j.skips() {
			j.entry(&es[i])
		}
	}
	return len(es)
}

// taker takes what a reader reads, of one or of several objects of a kind.
type taker interface {
	// some takes a little of what is there, and reports whether there was nothing. It waits for the
	// first if there is a context.
	some(ctx context.Context, of cq.Waitable) (empty bool, err error)
}

// atOnce is no context: what is there is enough.
var atOnce context.Context

// way is how a reader waits for as long as it has what it reads, and what it opens that with.
type way struct {
	name string // in the report
	open func(*reading) (wait waiter, leave func() error, err error)
	// toward are how the names of steps begin that lie on it; to others readers come in every way.
	toward  string
	shared  bool // as one of several goroutines
	handled bool // the library calls a handler
	wait    cq.WaitObject
}

// waiter waits until there is something, and returns what has it and is to be read.
type waiter func(context.Context) ([]cq.Waitable, error)

// reading is a reader's time with what it reads.
type reading struct {
	*checker
	taker
	of   []cq.Waitable // objects
	at   int           // of the site's ways
	way  *way
	left func() error // ends what it has beside; nil is nothing
}

// drain reads until it is all over, or this reader leaves by itself.
func (r *reading) drain(running context.Context) (done bool, err error) {
	if err = r.work(running); err != nil {
		return false, fmt.Errorf("%s: %w", r.way.name, err)
	}
	if running.Err() == nil {
		return false, nil // it leaves by itself
	}
	// Nobody posts any more. The deaths of those that were killed last may still have to come.
	for since := stage.Lifetime(); ; {
		for _, o := range r.of {
			for err = nil; err == nil || errors.Is(err, cq.ErrWouldBlock); {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
				_, err = r.some(ctx, o)
				cancel()
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				return false, fmt.Errorf("at the end: %w", err)
			}
		}
		if r.drained(since) {
			return true, nil
		}
	}
}

// errLeft ends the work of a reader that leaves.
var errLeft = errors.New("left")

// work reads a little of each object that is said to have something, until this reader leaves or
// its wait is cancelled, which hides nothing that goes wrong beside it.
func (r *reading) work(ctx context.Context) error {
	wait, leave, err := r.way.open(r)
	for err == nil && !r.leaves() && ctx.Err() == nil {
		var ready []cq.Waitable
		ready, err = wait(ctx)
		for i := 0; i < len(ready) && err == nil; i++ {
			_, err = r.some(atOnce, ready[i])
		}
	}
	if errors.Is(err, errLeft) {
		err = nil
	}
	err = unlessCancelled(err)
	if leave == nil {
		return err
	}
	return errors.Join(err, leave())
}

// leaves tells whether a reader goes now, by itself.
func (c *child) leaves() bool {
	if c.role.safe {
		return false
	}
	if c.Step == crash.DetachSilenced.String() || c.Step == crash.ClaimLeft.String() {
		return c.rnd.IntN(50) == 0
	}
	return c.rnd.IntN(3000) == 0
}

// byRead sleeps in the read for as long as nobody wakes it: a time limit would be a look that
// nobody rang for. The same holds of the other ways. A handler that has ended says that it leaves.
func (r *reading) byRead() (waiter, func() error, error) {
	return func(ctx context.Context) ([]cq.Waitable, error) {
		_, err := r.some(ctx, r.of[0])
		if errors.Is(err, cq.ErrWouldBlock) {
			err = nil
		} else if err == nil && r.way.handled {
			err = errLeft
		}
		return nil, err
	}, nil, nil
}

// descriptor is what can be waited for by its descriptor.
type descriptor interface {
	cq.TryWaiter
	GetWait() (cq.Native, error)
}

// readable looks at nothing but the descriptor until that is readable.
func readable(ctx context.Context, o descriptor) error {
	if err := cq.TryWait(o); errors.Is(err, cq.ErrWouldBlock) {
		return nil
	} else if err != nil {
		return err
	}
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

// byDescriptor waits on that of the only object.
func (r *reading) byDescriptor() (waiter, func() error, error) {
	return func(ctx context.Context) ([]cq.Waitable, error) {
		return r.of, readable(ctx, r.of[0].(descriptor))
	}, nil, nil
}

// set is what objects are waited for together in.
type set interface {
	Add(cq.Waitable) error
	Remove(cq.Waitable) error
	Close() error
}

// inSet puts all that is read into a set.
func (r *reading) inSet(s set, wait waiter) (waiter, func() error, error) {
	for _, o := range r.of {
		if err := s.Add(o); err != nil {
			return nil, s.Close, err
		}
	}
	return wait, func() (err error) {
		for _, o := range r.of {
			err = errors.Join(err, s.Remove(o))
		}
		return errors.Join(err, s.Close())
	}, nil
}

// unlessCancelled leaves the end of a wait out that was cancelled, unless more went wrong.
func unlessCancelled(err error) error {
	if inner := errors.Unwrap(err); inner != nil && unlessCancelled(inner) == nil {
		return nil
	}
	if err == context.Canceled {
		return nil
	}
	return err
}

// few returns room for some of the objects.
func (r *reading) few() []cq.Waitable { return make([]cq.Waitable, 1+r.rnd.IntN(len(r.of))) }

// bySet waits in a wait set, or on the descriptor of one.
func bySet(o cq.WaitSetOptions) func(*reading) (waiter, func() error, error) {
	return func(r *reading) (waiter, func() error, error) {
		s, err := cq.NewWaitSet(r.dir, o)
		if err != nil {
			return nil, nil, err
		}
		return r.inSet(s, func(ctx context.Context) ([]cq.Waitable, error) {
			dst, how := r.few(), cq.WaitOptions{}
			if o.Wait == cq.WaitFD {
				if err := readable(ctx, s); err != nil {
					return nil, err
				}
				how.Timeout = -1
			}
			n, err := s.Wait(ctx, dst, how)
			if o.Wait == cq.WaitFD && errors.Is(err, cq.ErrTimedOut) {
				err = nil
			}
			return dst[:n], err
		})
	}
}

func (r *reading) byPoll() (waiter, func() error, error) {
	s, err := cq.NewPollSet(r.dir, 0)
	if err != nil {
		return nil, nil, err
	}
	return r.inSet(s, func(context.Context) ([]cq.Waitable, error) {
		dst := r.few()
		n, err := s.Poll(dst)
		if n == 0 {
			nap(200 * time.Microsecond)
		}
		return dst[:n], err
	})
}

// channelSet is the queues at a channel.
type channelSet struct {
	*cq.Channel
	r *reading
}

// Add attaches a queue, arms it and reads it until it is empty.
func (s channelSet) Add(o cq.Waitable) error {
	return errors.Join(s.Attach(o.(*cq.Queue)), s.visit(o.(*cq.Queue)))
}

func (s channelSet) Remove(o cq.Waitable) error {
	return s.Detach(context.Background(), o.(*cq.Queue))
}

func (s channelSet) visit(q *cq.Queue) error {
	err := s.RequestNotify(q, cq.NotifyAny)
	for empty := false; !empty && err == nil; {
		empty, err = s.r.some(atOnce, q)
	}
	return err
}

func (r *reading) byChannel() (waiter, func() error, error) {
	ch, err := cq.NewChannel(r.dir)
	if err != nil {
		return nil, nil, err
	}
	s := channelSet{ch, r}
	return r.inSet(s, func(ctx context.Context) ([]cq.Waitable, error) {
		ev, err := ch.GetEvent(ctx, cq.WaitOptions{})
		if err == nil {
			err = errors.Join(ch.Ack(ev.Queue, 1), s.visit(ev.Queue))
		}
		return nil, err
	})
}

// toward tells whether the process is to die at a step whose name begins so.
func (c *child) toward(prefix string) bool { return strings.HasPrefix(c.Step, prefix) }

// Words of a role of which one process has a thing and the others wait for it to die, at the
// beginning of its words. Whoever has it stores them.
const (
	heldBy    = iota // its number, 0 while nobody surely has it
	heldTimes        // how often it was got
	heldEnded        // it is done with, and being destroyed
	heldAgain        // entries that came again, marked
	heldWords
)

// held is a thing that one process has at a time.
type held interface {
	Detach() error
	Close() error
}

// hold gets the thing when nobody has it, and uses it until it is done. make says that it may not
// exist; once it is destroyed nobody is to make it again.
func (c *child) hold(open func(make bool) (held, error),
	use func(running context.Context) (done bool, err error)) error {
	for since := stage.Lifetime(); c.words[heldEnded].Load() == 0; {
		h, err := open(c.words[heldTimes].Load() == 0)
		switch {
		case errors.Is(err, syscall.EBUSY), errors.Is(err, cq.ErrClosed),
			errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrExist), errors.Is(err, shm.ErrStale):
			// Somebody has it, or destroys it. Those who wait may wait for ever while somebody does.
			holder, waited := int(c.words[heldBy].Load()), stage.Lifetime()-since
			if waited > patience {
				c.tell(kindHung, "cannot get what nobody has (%d had it): %v", holder, err)
			}
			if waited > patience || waited > patience/4 && holder != 0 && lives(holder) {
				since = stage.Lifetime()
			}
			nap(500 * time.Microsecond)
			continue
		case err != nil:
			return fmt.Errorf("open: %w", err)
		}
		if err := c.have(h, use); err != nil {
			return err
		}
		since = stage.Lifetime()
	}
	if h, err := open(false); err == nil { // who was to destroy it has died over that
		return h.Close()
	}
	return nil
}

// have is one time with it.
func (c *child) have(h held, use func(running context.Context) (done bool, err error)) error {
	holder := &c.words[heldBy]
	if former := int(holder.Load()); former != 0 && former != os.Getpid() {
		if survives(former, func() bool { return true }) {
			c.tell(kindUsurped, "got what the living process %d has", former)
		}
		c.notice(noticeAdopted, cq.PeerEntry{PID: former})
	}
	holder.Store(uint64(os.Getpid()))
	c.words[heldTimes].Add(1)
	if c.owns(heldBy); c.between() {
		c.owns(siteHolder)
	}
	running, stop := c.running(phaseDrain)
	defer stop()
	done, err := use(running)
	c.owned()
	holder.Store(0)
	if err != nil {
		return errors.Join(err, h.Detach())
	}
	if !done {
		return h.Detach()
	}
	// Who dies over the destruction leaves something to be collected, or to be destroyed.
	c.words[heldEnded].Store(1)
	return h.Close()
}

func sumHeld(s *supervisor, r *role, to *RoleReport) {
	to.Redelivered = s.ledger.region(r.name)[heldAgain].Load()
}

func checkHeld(s *supervisor, r *role) {
	if s.ledger.region(r.name)[heldEnded].Load() == 0 {
		s.broken(r.name, kindHung, 1, "nobody came to the end of it")
	}
}

// holder completes a role of which one process has a thing at a time; the report has under times
// how often one got it.
func holder(times string, r role) *role {
	if r.counts == nil {
		r.counts = map[string]int{}
	}
	r.counts[times] = heldTimes
	r.stops, r.drains = true, true
	r.sum, r.check = sumHeld, checkHeld
	return &r
}
