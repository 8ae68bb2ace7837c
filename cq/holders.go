package cq

import (
	"os"
	"sync"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// holders counts who relies on an object of this process: sets and channels that it is a member of,
// bindings, feeders, and objects that report to it. While there is one the object cannot be closed
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

// holder is what a binding keeps open.
type holder interface {
	bind() error
	unbind()
}

// bind keeps the writer open, and its queue if that is read by this process, until unbind.
func (w *Writer) bind() error {
	err := w.holders.bind()
	if err == nil {
		countBound(w.queue, 1)
	}
	return err
}

func (w *Writer) unbind() {
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

// isHeld is ErrBusy if there are any, and refuses nobody.
func (q *core) isHeld(op string) error {
	h := &q.holders
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.free() && !q.written(op) {
		return nil
	}
	return q.errHeld(op)
}

func (q *core) errHeld(op string) error {
	return &Error{Pkg: kind.Pkg, Op: op, Name: q.name, Err: ErrBusy,
		Hint: "take it out of its sets and channels, and close what is bound to it: " +
			"CloseAll does so in order"}
}

// queueHere returns which queue of this process, if any, a writer holds. What a reader of another
// process calls its object is not believed if that is another user's.
func (w *Writer) queueHere() (id shm.UUID) {
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
