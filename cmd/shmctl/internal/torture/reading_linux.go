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
	// next takes some of what is there, and waits for the first.
	next(ctx context.Context, of cq.Waitable) error
	// some takes a little, and reports whether there was nothing.
	some(of cq.Waitable) (empty bool, err error)
}

// way is how a reader waits for as long as it has what it reads.
type way struct {
	name string // in the report
	wait func(*reading, context.Context) error
}

// countWays are the words in which readers count what was read in each way.
func countWays(first int, ways ...way) map[string]int {
	counts := map[string]int{}
	for i, w := range ways {
		counts[w.name] = first + i
	}
	return counts
}

// reading is a reader's time with what it reads.
type reading struct {
	*checker
	taker
	of  []cq.Waitable
	way way
}

// queues is a reading of queues.
func (c *child) queues(w way, qs ...*cq.Queue) *reading {
	j := c.checks()
	r := &reading{checker: j, taker: queueTaker{j}, way: w}
	for _, q := range qs {
		r.of = append(r.of, q)
	}
	return r
}

// reads opens what is to be read when nobody else has it, and reads until it is done, or leaves it
// in between. told is told the deaths of writers; nil is nobody.
func (c *child) reads(told func(cq.PeerEntry),
	open func(make bool, deaths *cq.EventQueue) (*reading, held, error)) error {
	return c.withDeaths(told, func(deaths *cq.EventQueue) error {
		var r *reading
		return c.hold(func(make bool) (h held, err error) {
			r, h, err = open(make, deaths)
			return h, err
		}, func(running context.Context) (done bool, err error) {
			c.has(max(r.mine, theOnly))
			c.bound()
			defer c.has(0)
			defer c.unbound()
			return r.drain(running)
		})
	})
}

// drain reads until it is all over, or this reader leaves by itself.
func (r *reading) drain(running context.Context) (done bool, err error) {
	if err = withoutCancel(r.way.wait(r, running)); err != nil {
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
				err = r.next(ctx, o)
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

// leaves tells whether a reader goes now, by itself.
func (c *child) leaves() bool {
	if c.Step == crash.DetachSilenced.String() || c.Step == crash.ClaimLeft.String() {
		return c.rnd.IntN(50) == 0
	}
	return c.rnd.IntN(3000) == 0
}

// byRead sleeps in the read for as long as nobody wakes it: a time limit would be a look that
// nobody rang for. The same holds of the other ways.
func (r *reading) byRead(ctx context.Context) error {
	for !r.leaves() {
		if err := r.next(ctx, r.of[0]); err != nil && !errors.Is(err, cq.ErrWouldBlock) {
			return err
		}
	}
	return nil
}

// descriptor is what can be waited for by its descriptor.
type descriptor interface {
	cq.TryWaiter
	GetWait() (cq.Native, error)
}

// whenReadable looks at nothing but the descriptor until that is readable, and works then.
func (r *reading) whenReadable(ctx context.Context, o descriptor, work func() error) error {
	for !r.leaves() && ctx.Err() == nil {
		err := cq.TryWait(o)
		if err == nil {
			err = readable(ctx, o)
		}
		if err != nil && !errors.Is(err, cq.ErrWouldBlock) {
			return err
		}
		if err := work(); err != nil {
			return err
		}
	}
	return nil
}

// readable waits until a descriptor is.
func readable(ctx context.Context, o descriptor) error {
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
func (r *reading) byDescriptor(ctx context.Context) error {
	o := r.of[0].(descriptor)
	return r.whenReadable(ctx, o, func() error { return r.ready(r.of) })
}

// inSet runs f while all that is read is in a set.
func (r *reading) inSet(s interface {
	Add(cq.Waitable) error
	leaving
}, f func() error) (err error) {
	defer func() { err = errors.Join(err, r.leave(s)) }()
	for _, o := range r.of {
		if err := s.Add(o); err != nil {
			return err
		}
	}
	return f()
}

// leaving is how one leaves a set.
type leaving interface {
	Remove(cq.Waitable) error
	Close() error
}

func (r *reading) leave(s leaving) (err error) {
	for _, o := range r.of {
		err = errors.Join(err, s.Remove(o))
	}
	return errors.Join(err, s.Close())
}

// few returns room for some of the objects.
func (r *reading) few() []cq.Waitable { return make([]cq.Waitable, 1+r.rnd.IntN(len(r.of))) }

// ready reads a little of each object that was said to have something.
func (r *reading) ready(objects []cq.Waitable) error {
	for _, o := range objects {
		if _, err := r.some(o); err != nil {
			return err
		}
	}
	return nil
}

func (r *reading) bySet(ctx context.Context) error {
	s, err := cq.NewWaitSet(r.dir, cq.WaitSetOptions{})
	if err != nil {
		return err
	}
	return r.inSet(s, func() error {
		for !r.leaves() {
			dst := r.few()
			n, err := s.Wait(ctx, dst, cq.WaitOptions{})
			if err == nil {
				err = r.ready(dst[:n])
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// bySetDescriptor waits on the descriptor of a set.
func (r *reading) bySetDescriptor(ctx context.Context) error {
	s, err := cq.NewWaitSet(r.dir, cq.WaitSetOptions{Wait: cq.WaitFD})
	if err != nil {
		return err
	}
	dst := make([]cq.Waitable, len(r.of))
	return r.inSet(s, func() error {
		return r.whenReadable(ctx, s, func() error {
			n, err := s.Wait(ctx, dst, cq.WaitOptions{Timeout: -1})
			if err != nil && !errors.Is(err, cq.ErrTimedOut) {
				return err
			}
			return r.ready(dst[:n])
		})
	})
}

func (r *reading) byPoll(ctx context.Context) error {
	s, err := cq.NewPollSet(r.dir, 0)
	if err != nil {
		return err
	}
	return r.inSet(s, func() error {
		for !r.leaves() && ctx.Err() == nil {
			dst := r.few()
			n, err := s.Poll(dst)
			if err != nil {
				return err
			}
			if n == 0 {
				nap(200 * time.Microsecond)
			}
			if err := r.ready(dst[:n]); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *reading) byChannel(ctx context.Context) (err error) {
	ch, err := cq.NewChannel(r.dir)
	if err != nil {
		return err
	}
	defer func() {
		for _, o := range r.of {
			err = errors.Join(err, ch.Detach(context.Background(), o.(*cq.Queue)))
		}
		err = errors.Join(err, ch.Close())
	}()
	for _, o := range r.of {
		if err := ch.Attach(o.(*cq.Queue)); err != nil {
			return err
		}
	}
	for _, o := range r.of {
		if err := r.visit(ch, o.(*cq.Queue)); err != nil {
			return err
		}
	}
	for !r.leaves() {
		ev, err := ch.GetEvent(ctx, cq.WaitOptions{})
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
func (r *reading) visit(ch *cq.Channel, q *cq.Queue) error {
	if err := ch.RequestNotify(q, cq.NotifyAny); err != nil {
		return err
	}
	for {
		if empty, err := r.some(q); empty || err != nil {
			return err
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
	running, stop := c.running(phaseDrain)
	defer stop()
	for since := stage.Lifetime(); c.words[heldEnded].Load() == 0; {
		h, err := open(c.words[heldTimes].Load() == 0)
		switch {
		case errors.Is(err, syscall.EBUSY), errors.Is(err, cq.ErrClosed),
			errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrExist), errors.Is(err, shm.ErrStale):
			// Somebody has it, or destroys it.
			if stage.Lifetime()-since > patience/4 {
				since = c.barred(since, err)
			}
			nap(500 * time.Microsecond)
			continue
		case err != nil:
			return fmt.Errorf("open: %w", err)
		}
		if err := c.have(running, h, use); err != nil {
			return err
		}
		since = stage.Lifetime()
	}
	return nil
}

// barred tells what keeps this process from a thing that nobody has. It returns since when nobody
// has it, as far as it looked: those who wait may wait for ever while somebody does.
func (c *child) barred(since time.Duration, err error) time.Duration {
	holder := int(c.words[heldBy].Load())
	if holder != 0 && lives(holder) {
		return stage.Lifetime()
	}
	if stage.Lifetime()-since < patience {
		return since
	}
	c.tell(kindHung, "cannot get what nobody has (%d had it): %v", holder, err)
	return stage.Lifetime()
}

// have is one time with it.
func (c *child) have(running context.Context, h held,
	use func(running context.Context) (done bool, err error)) error {
	holder := &c.words[heldBy]
	if former := int(holder.Load()); former != 0 && former != os.Getpid() {
		if survives(former, func() bool { return true }) {
			c.tell(kindUsurped, "got what the living process %d has", former)
		}
		c.notice(noticeAdopted, cq.PeerEntry{PID: former})
	}
	holder.Store(uint64(os.Getpid()))
	c.words[heldTimes].Add(1)
	done, err := use(running)
	holder.Store(0)
	if err != nil {
		return errors.Join(err, h.Detach())
	}
	if !done {
		return h.Detach()
	}
	// Who dies over the destruction leaves something to be collected, and nothing to be got.
	c.words[heldEnded].Store(1)
	return h.Close()
}

// heldPossession: nobody else gets it from a process that is stopped.
func heldPossession(s *supervisor, p *proc) func() string {
	words := s.ledger.region(p.role.name)
	if words[heldBy].Load() != uint64(p.PID()) {
		return nil
	}
	had := words[heldTimes].Load()
	return func() string {
		if words[heldBy].Load() != uint64(p.PID()) || words[heldTimes].Load() > had+1 {
			return "another one got what it has"
		}
		return ""
	}
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
	r.stops, r.drains, r.words = true, true, max(r.words, heldWords)
	r.possession, r.sum, r.check = heldPossession, sumHeld, checkHeld
	return &r
}

// posting completes a role whose processes have sessions; words are those beside.
func posting(r role) *role {
	r.counts = map[string]int{"calms": sessionsLength(r.places) - 1}
	r.stops, r.words = true, r.words+sessionsLength(r.places)
	r.calm, r.settled, r.sum, r.check = calm, sessionsSettled, sumSessions, checkSessions
	if r.died == nil {
		r.died = sessionsDied
	}
	return &r
}
