package endpoint

import (
	"github.com/shmring/shmring/cq"
)

// Recv posts memory to receive a datagram into (fi_recv). It needs Config.Posted, else it is
// [ErrNotSupported]. The memory is the endpoint's until the completion, which carries the context.
// Errors: cq.ErrFull, which is EAGAIN: the queue has no room for one more completion; those of the
// queue; os.ErrClosed.
//
// Datagrams fill buffers in the order in which these were posted. One that is longer than its
// buffer ends it with ETRUNC: an error entry with the bytes that fit in Len, and those that did not
// in OverrunBytes.
func (e *Endpoint) Recv(buf []byte, context uint64) error {
	return e.RecvMsg(&Msg{Buf: buf, Context: context})
}

// RecvMsg is the receive that takes everything (fi_recvmsg). Flags: FlagCompletion, and
// FlagMultiRecv, which keeps Buf in use for one datagram after the other until less than
// Config.MinMultiRecv is left of it; Iov is not for these ([ErrFlags]). Each datagram has a
// completion, whose Buf is Base plus where it lies in the buffer, and whose room in the queue is
// not reserved: datagrams wait for it. The release of the buffer is told as Config.MultiRecv says,
// also by a selective binding, and always has room.
func (e *Endpoint) RecvMsg(m *Msg) error {
	e.lock()
	defer e.unlock()
	return e.postBuffer(m)
}

// Cancel ends the first posted buffer with this context that no datagram is in: it completes with
// ECANCELED (fi_cancel). A multi-receive buffer that holds datagrams is released instead, as if it
// were full. [ErrNotFound] says that there is none; sends cannot be cancelled.
func (e *Endpoint) Cancel(context uint64) error {
	e.lock()
	defer e.unlock()
	return e.cancelBuffer(context)
}

type postedQueue struct{}

func (e *Endpoint) postBuffer(*Msg) error          { return ErrNotSupported }
func (e *Endpoint) cancelBuffer(uint64) error      { return ErrNotFound }
func (e *Endpoint) cancelBuffers()                 {}
func (e *Endpoint) receivePosted(int) (int, error) { return 0, nil }

var _ cq.Addr
