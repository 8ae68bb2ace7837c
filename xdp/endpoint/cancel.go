package endpoint

import "github.com/shmring/shmring/cq"

// Cancel ends the oldest posted buffer with this context: it completes with ECANCELED (fi_cancel).
// Datagrams that a multi-receive buffer holds have been reported, and the entry has FlagMultiRecv:
// the buffer is the user's again. [ErrNotFound] says that there is no such buffer, because a
// datagram got it, for one; sends cannot be cancelled.
func (e *Endpoint) Cancel(context uint64) error {
	e.lock()
	defer e.unlock()
	if err := e.usable(); err != nil {
		return err
	}
	for i := range e.buffers.n {
		if b := e.buffers.at(i); b.context == context {
			e.cancelled(b)
			e.buffers.remove(i)
			return nil
		}
	}
	return ErrNotFound
}

func (e *Endpoint) cancelled(b *buffer) {
	e.stats.Cancelled++
	e.failure = cq.ErrorEntry{Context: b.context, Flags: recvKind | b.flags&cq.FlagMultiRecv,
		Buf: b.base, Err: errCanceled, ProvErrno: int32(errCanceled)}
	e.failBuffer(b.flags)
}

// cancelBuffers ends all of them, oldest first, when the socket is closed.
func (e *Endpoint) cancelBuffers() {
	for ; e.buffers.n > 0; e.buffers.pop() {
		e.cancelled(e.buffers.at(0))
	}
	e.drop(e.buffers.held)
	e.buffers.held = nil
}
