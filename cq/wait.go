package cq

import (
	"context"
	"math"
	"runtime"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/wake"
)

// sliceNs is how long a reader sleeps at most while some writer's death would not be noticed.
const sliceNs = int64(100 * time.Millisecond)

// lookOnce has a set or channel look and not wait.
var lookOnce = wake.Wait{DeadlineNs: -1}

// WaitOptions bounds a call that waits. The zero value waits until its context ends.
type WaitOptions struct {
	// Timeout ends the wait with ErrTimedOut; 0 is no timeout. With a negative one the call looks
	// once and does not wait. It costs less than a context that is made for each call.
	Timeout time.Duration
}

// ReadOptions says what a read that waits waits for. The zero value is any entry, until the context
// ends.
type ReadOptions struct {
	// Timeout is as in [WaitOptions].
	Timeout time.Duration
	// Threshold is how many entries to wait for (FI_CQ_COND_THRESHOLD), a hint in libfabric; 0 is
	// one. A read returns when so many are there, when a lane is full, which can come first if the
	// threshold is more than a lane holds, or when an error entry is there. At the deadline, at a
	// signal and at the end of the context it returns what there is.
	Threshold int
	// Source gets the source of each entry, AddrNotAvail where it is not known (fi_cq_sreadfrom). It
	// is as long as dst, or nil.
	Source []Addr
	// From, if it is not nil, has the read take the entries of one writer only, and gets whose they
	// are if it returns any. There may be more, of this writer and of others.
	From *Lane
	// Flags are for event queues: FlagPeek leaves the event where it is (FI_PEEK).
	Flags Flags
}

// ReadContext is Read that waits until the context ends (fi_cq_sread, fi_cq_sreadfrom); then it
// returns an error that matches ctx.Err() and its cause. The context is not looked at while entries
// are there. Besides Read's, its results are ErrTimedOut and ErrSignaled (both EAGAIN); ErrClosed
// when the queue is closed while it waits; ErrNoWait for a queue that cannot block, whatever is
// there. What is available wins over a signal, and a timeout leaves a signal for the next call.
//
// While it waits it looks for Options.Spin and then sleeps on a futex, which holds an operating
// system thread; from the 33rd goroutine of the process that sleeps so, 127 of them share one.
func ReadContext[T Readable](ctx context.Context, q *Queue, dst []T, o ReadOptions) (int, error) {
	switch {
	case o.Source != nil && len(o.Source) != len(dst):
		return 0, kind.Refuse("sread", q.name, "len(Source)", len(o.Source), len(dst), ErrInvalid)
	case o.Flags != 0:
		return 0, kind.Refuse("sread", q.name, "Flags", o.Flags, "none for completions", ErrInvalid)
	case !q.opt.Wait.blocks():
		return 0, q.errNoWait()
	}
	// The fast path touches neither clock nor context. A format that will be refused is refused now.
	if o.Threshold <= 1 || bytesOf[T]() > q.widest {
		if n, err := readOnce(q, dst, &o); n > 0 || err != ErrWouldBlock {
			return n, err
		}
	}
	w := q.newWait(ctx, o.Timeout)
	defer w.close()
	var ended error
	if o.Threshold > 1 { // whatever ends that, what is there is the result
		ended = w.threshold(uint64(o.Threshold))
	}
	for {
		n, err := readOnce(q, dst, &o)
		if n > 0 || err != ErrWouldBlock {
			return n, err
		}
		if ended == nil {
			ended = w.once()
		}
		if ended != nil {
			return 0, ended
		}
	}
}

// readOnce is a read under these conditions that does not wait.
func readOnce[T Readable](q *Queue, dst []T, o *ReadOptions) (int, error) {
	if o.From != nil {
		return readLane(q, dst, o.Source, o.From)
	}
	return readFrom(q, dst, o.Source)
}

// PeekContext is Peek that waits until the context ends. It does not wait while entries are handed
// out: what could follow them is ErrWouldBlock then, as with Peek.
func (q *Queue) PeekContext(ctx context.Context, n int) ([]Entry, error) {
	if !q.opt.Wait.blocks() {
		return nil, q.errNoWait()
	}
	es, out, err := q.peekOnce(n)
	if err != ErrWouldBlock || out {
		return es, err
	}
	w := q.newWait(ctx, 0)
	defer w.close()
	for {
		if es, out, err = q.peekOnce(n); err != ErrWouldBlock || out {
			return es, err
		}
		if err = w.once(); err != nil {
			return nil, err
		}
	}
}

// wait is one blocking call.
type wait struct {
	q          *core
	ctx        context.Context
	cancel     func() bool // of context.AfterFunc, once about to sleep
	deadlineNs int64       // 0 is none
	broadcast  uint64      // Queue.broadcast when the call began
	spun       bool
	yields     uint
	feeders    feederBells // of a spell of spinning, or a sleep
}

// errNoWait is what a blocking read of a queue that cannot block returns, whatever is there.
func (q *core) errNoWait() error {
	return &Error{Pkg: kind.Pkg, Op: "sread", Name: q.name, Err: ErrNoWait,
		Hint: "create the queue with another wait object"}
}

func (q *core) newWait(ctx context.Context, timeout time.Duration) *wait {
	return &wait{q: q, ctx: ctx, broadcast: q.broadcast.Load(), deadlineNs: deadline(timeout)}
}

// deadline is 0, none, for no timeout. It adds without overflow.
func deadline(timeout time.Duration) int64 {
	if timeout == 0 {
		return 0
	}
	now := spin.Now()
	if int64(timeout) > math.MaxInt64-now {
		return math.MaxInt64
	}
	return max(1, now+int64(timeout))
}

func (w *wait) close() {
	if w.cancel != nil {
		w.cancel()
	}
}

// over says why the call must end although nothing is there, or nil.
func (w *wait) over() error {
	switch {
	case w.q.guard.isClosed():
		return ErrClosed
	case w.ctx.Err() != nil:
		return kind.Ended(w.ctx)
	case w.deadlineNs != 0 && spin.Now() >= w.deadlineNs:
		return errReadTimedOut // before the latch: a signal stays for the next call
	case w.q.broadcast.Load() != w.broadcast:
		return ErrSignaled
	}
	return nil
}

// once waits until a look is worth while; an error says why the call must end.
func (w *wait) once() error {
	q := w.q
	if err := w.over(); err != nil {
		return err
	}
	if !q.guard.enter() {
		return q.guard.refusal()
	}
	defer q.guard.leave()
	if q.opt.Wait == WaitYield {
		if q.bell.TakeSignal() {
			return ErrSignaled
		}
		q.feeders.progress()
		w.yield()
		return nil
	}
	if !w.spun && q.spin > 0 {
		w.spun = true
		if w.spin() {
			return nil
		}
	}
	q.bell.Lock()
	q.bell.Take()
	more, err := q.bell.Park()       // R4
	more = more || len(q.broken) > 0 // Take may have found a lane that cannot be opened
	signaled := err == nil && !more && q.bell.TakeSignal()
	if q.leavers.any() {
		q.reap()
	}
	q.bell.Unlock()
	switch {
	case err != nil:
		return err
	case more:
		w.spun = false
		return nil
	case signaled:
		return ErrSignaled
	}
	return w.sleep(wake.Wait{})
}

func (w *wait) yield() {
	w.yields++
	spin.Yield(w.yields)
}

// spin looks for as long as the queue's options say. It reports that there is something to do,
// which may be that the call is over: clock and context are asked between stretches, not at every
// look.
func (w *wait) spin() bool {
	const stretch = 5 * spin.Default
	w.q.feeders.holdBells(&w.feeders)
	defer w.feeders.drop()
	for left := w.q.spin; left > 0; left -= stretch {
		if spin.Until(min(left, stretch), w.look) || w.over() != nil {
			return true
		}
	}
	return false
}

// look is what a spinning reader looks at. In a shared queue the lock keeps others from changing
// the candidates meanwhile.
func (w *wait) look() bool {
	w.q.bell.Lock()
	defer w.q.bell.Unlock()
	return w.q.bell.Pending() || w.feeders.pending() || w.q.guard.isClosed() ||
		w.q.broadcast.Load() != w.broadcast
}

// sleep is R5 to R9, and the full look at the end of a slice.
func (w *wait) sleep(d wake.Wait) error {
	q := w.q
	if w.cancel == nil && w.ctx.Done() != nil {
		w.cancel = context.AfterFunc(w.ctx, q.kick)
	}
	d.DeadlineNs = w.deadlineNs
	again := q.feeders.drive()
	if again == 0 {
		runtime.Gosched()
		return nil
	}
	if rest := q.awaitMany(); rest != nil {
		defer rest()
	} else {
		q.feeders.holdBells(&w.feeders)
		defer w.feeders.drop()
		if more, err := w.feeders.park(); more || err != nil {
			return err
		}
		d.Feeders = w.feeders.bells
	}
	if again > 0 {
		d.SliceNs = int64(again)
	}
	if q.sliced.Load() && (d.SliceNs == 0 || d.SliceNs > sliceNs) {
		d.SliceNs = sliceNs
	}
	d.Stop = func() bool { return w.over() != nil }
	q.bell.Sleep(d)
	if q.sliced.Load() {
		q.bell.Lock()
		defer q.bell.Unlock()
		return q.findLanes(false)
	}
	return nil
}

// awaitMany has goroutines drive the feeders until rest, if they are more than a sleep has words
// for. Else rest is nil.
func (q *core) awaitMany() (rest func()) {
	most := wake.MostWords - 1
	if q.opt.Trust == CrossUser {
		most -= q.opt.MaxLanes
	}
	if len(q.feeders.list()) <= most {
		return nil
	}
	return q.feeders.await()
}

// kick wakes every waiter. It may come late, from a context that outlived the wait.
func (q *core) kick() {
	if q.guard.enterAny() {
		q.bell.Kick()
		q.guard.leaveAny()
	}
}

// threshold waits until least entries are waiting in all lanes together, or something else ends
// the wait. Nothing is read.
func (w *wait) threshold(least uint64) error {
	q := w.q
	for {
		if !q.guard.enter() {
			return q.guard.refusal()
		}
		err, done := w.thresholdOnce(least)
		q.guard.leave()
		if done || err != nil {
			return err
		}
	}
}

func (w *wait) thresholdOnce(least uint64) (err error, done bool) {
	q := w.q
	q.bell.Lock()
	takes := q.bell.Take()
	_, err = q.bell.Park()
	sum, end := q.waiting()
	q.bell.Unlock()
	if err != nil || end || sum >= least {
		return err, true
	}
	if err := w.over(); err != nil {
		return err, true
	}
	q.bell.Lock()
	signaled := q.bell.TakeSignal()
	q.bell.Unlock()
	switch {
	case signaled: // what is there is the result; in a shared queue it may be gone by now
		return ErrSignaled, true
	case q.opt.Wait == WaitYield:
		q.feeders.progress()
		w.yield()
		return nil, false
	}
	return w.sleep(wake.Wait{Missing: least - sum, Takes: takes}), false
}

// waiting counts the entries that wait in all lanes. end says that there is no point in waiting
// for more: a lane is full, broken or overrun, or holds an error entry.
func (q *core) waiting() (sum uint64, end bool) {
	end = q.errLane != nil || len(q.broken) > 0 || q.overrun != nil || q.out != nil
	for bit := q.bell.Next(0); bit >= 0; bit = q.bell.Next(bit + 1) {
		l := q.lanes[bit]
		head, tail := l.Level()
		sum += tail - head
		lastError := l.words.Err.Load()
		end = end || tail-head >= uint64(q.opt.Size) || lastError-head-1 < uint64(q.opt.Size) ||
			l.cons.Err() != nil || l.words.Overrun.Load() != 0
	}
	return sum, end
}

// TryWait arms the queue's wait object (fi_trywait). nil says that nothing is there and that a
// blocking wait on what [Queue.GetWait] returns will end when something comes; ErrWouldBlock that
// something is there, or may be: read until ErrWouldBlock and try again. ErrSignaled reports a
// signal, once. It must be called before each such wait, by the goroutine that reads the queue.
func (q *core) TryWait() error {
	if q.face == nil {
		return &Error{Pkg: kind.Pkg, Op: "trywait", Name: q.name, Err: ErrNoWait,
			Hint: "create the queue with WaitFD"}
	}
	if !q.guard.enter() {
		return q.guard.refusal()
	}
	defer q.guard.leave()
	q.feeders.progress()
	switch due, err := q.due(); {
	case err != nil:
		return err
	case due:
		return ErrWouldBlock
	}
	ready, signaled, err := q.bell.TryWait()
	switch {
	case err != nil:
		return err
	case signaled:
		return ErrSignaled
	case ready:
		return ErrWouldBlock
	}
	q.bell.Lock()
	defer q.bell.Unlock()
	q.reap()
	if len(q.broken) > 0 { // it was marked just now, and cannot be opened
		return ErrWouldBlock
	}
	q.keeper.arm()
	q.feeders.armed.replace(q.feeders.await())
	return nil
}

// due looks for what a read would return that no lane has a mark for.
func (q *core) due() (bool, error) {
	q.bell.Lock()
	defer q.bell.Unlock()
	q.whole.prune()
	if q.sliced.Load() {
		if err := q.findLanes(false); err != nil {
			return false, err
		}
	}
	return q.errLane != nil || len(q.broken) > 0 || q.overrun != nil, nil
}

// TryWaiter is what [TryWait] takes: a queue, event queue, counter or wait set with a wait object
// that the caller can sleep on with system calls of its own.
type TryWaiter interface {
	FID() FID
	TryWait() error
	waitObject() WaitObject
}

// TryWait arms the wait objects of everything that the caller is about to sleep on (fi_trywait).
// nil says that nothing is queued anywhere and that a sleep on the descriptors will end when
// something comes; ErrWouldBlock that something is there, or may be: read everything and try again.
// All must have the same kind of wait object, else ErrInvalid; ErrNoWait if that is none to sleep
// on. Of a set only the set itself is passed, not its members. Every sleep needs a TryWait of its
// own.
//
// Each object must be one that the calling goroutine may use.
func TryWait(objects ...TryWaiter) error {
	for _, o := range objects {
		if kind.Absent(o) {
			return errAbsent("trywait")
		}
		if o.waitObject() != objects[0].waitObject() {
			return kind.Refuse("trywait", o.FID().String(), "wait object", o.waitObject(),
				objects[0].waitObject(), ErrInvalid)
		}
	}
	for _, o := range objects {
		if err := o.TryWait(); err != nil {
			return err
		}
	}
	return nil
}
