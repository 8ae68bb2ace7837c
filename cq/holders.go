package cq

import "sync"

// holders counts who relies on an object of this process: sets and channels that it is a member of,
// feeders and counters bound to it. While there is one the object cannot be closed (EBUSY).
type holders struct {
	mu     sync.Mutex
	n      int
	own    bool // one of them goes with the object: the set that it was opened in
	closed bool
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
