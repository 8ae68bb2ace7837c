package cq

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// guard keeps Close, which may come from any goroutine, from unmapping memory that a call is
// using. A call marks itself and then looks whether the handle is closed; Close marks it closed and
// then waits for the mark to go. Each needs its store before its load. The caller's side is hot,
// so Close pays for both: a barrier on every thread of the process.
//
// A handle that several goroutines use counts them instead, or has a lock under which there is one.
type guard struct {
	busy   ring.Index   // written by the one goroutine that uses the handle
	loans  ring.Index   // entries handed out in place, written by the goroutine that has them
	users  atomic.Int64 // goroutines inside, beside the one that busy stands for
	closed atomic.Bool
	over   atomic.Bool // closed, and nobody is inside any more
	shared bool
	// misused says that a second goroutine was found inside. Whether one was is asked with a load
	// and not claimed with an atomic operation, so it may also have been missed.
	misused atomic.Bool
}

// misusedGrace is how long close waits for a goroutine that it cannot see.
const misusedGrace = 10 * time.Millisecond

// drainGrace is far longer than a store stays in a processor's buffer: for a close where the kernel
// refuses the barrier, since a filter of system calls came late.
const drainGrace = 10 * time.Millisecond

// asymmetric tells whether Close can pay. It is decided once: both sides must agree.
var asymmetric = barrier.RegisterPrivate() == nil

// enter reports whether the handle may be used; leave must follow if it may.
func (g *guard) enter() bool {
	if g.shared {
		return g.enterAny()
	}
	return g.enterSeen()
}

// enterSeen is enterAlone that turns a second goroutine away if it can be seen: the load does not
// wait for stores of other processors. The shortest calls do without it: on an empty read it would
// be a third of the time.
func (g *guard) enterSeen() bool { return g.busy.Load() == 0 && g.enterAlone() }

func (g *guard) leave() {
	if g.shared {
		g.leaveAny()
		return
	}
	g.leaveAlone()
}

// enterAlone is enter for the one goroutine that uses the handle, or has its lock; leaveAlone must
// follow. Both are inlined, and on amd64 they are two stores and a load.
func (g *guard) enterAlone() bool {
	ring.StoreRelease(&g.busy, 1)
	if !asymmetric {
		g.busy.Store(1)
	}
	if g.closed.Load() {
		g.leaveAlone()
		return false
	}
	return true
}

func (g *guard) leaveAlone() { ring.StoreRelease(&g.busy, 0) }

// refusal says why the handle could not be entered.
func (g *guard) refusal() error {
	if g.closed.Load() {
		return ErrClosed
	}
	g.misused.Store(true)
	return errInUse
}

// errInUse is made once: a caller that tries again and again costs nothing.
var errInUse error = &Error{Pkg: kind.Pkg, Op: "enter", Name: "handle", Err: ErrBusy,
	Hint: "it is used by two goroutines at once: give each its own, or a queue Options.Shared"}

// enterAny is enter for calls that may come from any goroutine at any time; leaveAny must follow.
func (g *guard) enterAny() bool {
	g.users.Add(1)
	if !g.closed.Load() {
		return true
	}
	g.users.Add(-1)
	return false
}

func (g *guard) leaveAny() { g.users.Add(-1) }

// close closes the gate and calls wake until nobody is inside any more. It reports whether this
// was the first close. With entries handed out it opens the gate again and fails.
func (g *guard) close(wake func()) (first bool, err error) {
	// Looked at before the gate closes as well, so that a close that must fail turns nobody away.
	if g.loans.Load() != 0 {
		return false, ErrBusy
	}
	if !g.closed.CompareAndSwap(false, true) {
		return false, nil
	}
	if asymmetric && barrier.Private() != nil {
		time.Sleep(drainGrace)
	}
	for i := 0; g.busy.Load() != 0 || g.users.Load() != 0; i++ {
		wake()
		if i < 16 {
			runtime.Gosched()
		} else {
			time.Sleep(50 * time.Microsecond)
		}
	}
	if g.misused.Load() {
		// The mark may have been wiped by one of two who were inside: let the other leave.
		time.Sleep(misusedGrace)
	}
	if g.loans.Load() != 0 {
		g.closed.Store(false)
		return false, ErrBusy
	}
	g.over.Store(true)
	return true, nil
}

func (g *guard) isClosed() bool { return g.closed.Load() }

// isOver reports whether a close has turned everybody out: from then on nobody uses the memory.
func (g *guard) isOver() bool { return g.over.Load() }

// holders counts who relies on an object of this process: sets and channels that it is a member of,
// endpoints, feeders, and objects that report to it. While there is one the object cannot be closed
// (EBUSY).
type holders struct {
	mu     sync.Mutex
	n      int
	own    bool // one of them goes with the object: the set that it was opened in
	closed bool
}

// boundWriters counts, by queue, what is bound to the queue's writers in this process. The queue
// may be read by another process, or by this one later.
var boundWriters = struct {
	mu sync.Mutex
	of map[shm.UUID]int
}{of: map[shm.UUID]int{}}

// countBound adds to the count of a queue and returns it.
func countBound(queue shm.UUID, add int) int {
	b := &boundWriters
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.of[queue] + add
	if b.of[queue] = n; n == 0 {
		delete(b.of, queue)
	}
	return n
}

// Hold binds an endpoint of one's own to what it reports to and needs (fi_ep_bind): until release
// is called their Close is ErrBusy (EBUSY), as is that of a Writer's queue if this process reads
// it. Each is a [*Writer], a [*Counter], an [*AddressVector], an [*EventQueue] or an
// [*EventWriter]; all of them are held or none is. ErrClosed says that one is closed, ErrInvalid
// that one is nil or something else. Calling release again is harmless. Hold and release may be
// called from anywhere.
//
// The rest of an endpoint's duties is done like this. The endpoint begins an operation with
// [Credits.Add], which is EAGAIN if there is no room for its completion, and ends it with
// [Credits.Post], [Credits.PostError] or [Credits.Return]; where many end together, it fills slots
// of [Writer.Reserve]. It counts an operation that ends with [Counter.Add] or [Counter.AddErr]. It
// finds the source of data with [AddressVector.Resolve] (FI_SOURCE); if that is not in the vector,
// it can post an error entry with EADDRNOTAVAIL and the address as ErrData (FI_SOURCE_ERR). The
// queue tells it of an overrun, and drives it, if [Queue.Bind] said so.
func Hold(objects ...io.Closer) (release func(), err error) {
	var held []holder
	release = sync.OnceFunc(func() {
		for _, h := range held {
			h.unbind()
		}
	})
	for _, o := range objects {
		h := holderOf(o)
		if h == nil {
			err = kind.Refuse("hold", "", "objects", fmt.Sprintf("%T", o),
				"writers, counters, address vectors, event queues", ErrInvalid)
		} else if err = h.bind(); err == nil {
			held = append(held, h)
		}
		if err != nil {
			release()
			return nil, err
		}
	}
	return release, nil
}

// holder is an object that can be kept open.
type holder interface {
	bind() error
	unbind()
}

func holderOf(o io.Closer) holder {
	if kind.Absent(o) {
		return nil
	}
	switch o := o.(type) {
	case *Counter:
		return &o.holders
	case *AddressVector:
		return &o.holders
	case holder: // of entries or events
		return o
	}
	return nil
}

// bind keeps the writer open, and its queue if that is read by this process, until unbind.
func (w *laneWriter) bind() error {
	err := w.holders.bind()
	if err == nil {
		countBound(w.queue, 1)
	}
	return err
}

func (w *laneWriter) unbind() {
	countBound(w.queue, -1)
	w.holders.unbind()
}

// written reports whether something of this process is bound to one of the queue's writers, whose
// completions the end of the queue would lose. After a detach a successor reads them.
func (q *core) written(op string) bool {
	return op == opClose && countBound(q.obj.Header().UUID, 0) > 0
}

// refuseHolders refuses holders of a queue from now on, or is ErrBusy if there are any.
func (q *core) refuseHolders(op string) error {
	if q.written(op) || q.holders.close() != nil {
		return q.errHeld(op)
	}
	return nil
}

// hintCloseAll ends a hint that says what to close before.
const hintCloseAll = "; CloseAll does so if it is given these too"

func (q *core) errHeld(op string) error {
	hint := "take it out of its sets and channels, and close the endpoints that post to it or " +
		"with its writers"
	if q.opt.events {
		hint = "take it out of its sets, and close the queues, writers, counters, memory regions, " +
			"address vectors and endpoints that report to it"
	}
	return &Error{Pkg: kind.Pkg, Op: op, Name: q.name, Err: ErrBusy, Hint: hint + hintCloseAll}
}

// queueHere returns which queue of this process, if any, a writer holds. What a reader of another
// process calls its object is not believed if that is another user's.
func (w *laneWriter) queueHere() (id shm.UUID) {
	if w.peer != nil && w.peer.PID != os.Getpid() {
		return id
	}
	return w.reader.Header().UUID
}

// bind adds a holder, unless the object is closed.
func (h *holders) bind() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrClosed
	}
	h.n++
	return nil
}

// unbind takes one away.
func (h *holders) unbind() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n--
}

// adopt says that one of the holders goes with the object; disown that this one leaves.
func (h *holders) adopt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.own = true
}

func (h *holders) disown() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n--
	h.own = false
}

func (h *holders) hasOwn() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.own
}

// free reports whether nobody holds the object but who goes with it. The lock is held.
func (h *holders) free() bool { return h.n == 0 || h.n == 1 && h.own }

// close refuses holders from now on, or is ErrBusy if there are any, but for one that goes with the
// object.
func (h *holders) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.free() {
		return ErrBusy
	}
	h.closed = true
	return nil
}

// reopen takes a close back, of an object that could not be closed for another reason.
func (h *holders) reopen() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = false
}
