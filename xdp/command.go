package xdp

import (
	"fmt"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// Commands are entries of a queue whose reader is the device process; an application posts them
// through a lane of its own. Their flags say which they are, and nothing else may be set.
const (
	sendFlags   = cq.FlagSend | cq.FlagMsg
	returnFlags = cq.FlagFrame
)

// SendCommand asks for n bytes at payload, in a region that the device process knows, to be sent to
// the port's peer with number to. The bytes must stay as they are until the completion, which
// carries the context.
func SendCommand(context uint64, payload shm.Ref, n int, to cq.Addr) cq.Entry {
	return cq.Entry{Context: context, Flags: sendFlags, Len: uint64(n), Buf: payload, Src: to}
}

// ReturnCommand gives back the frame of a receive completion. It names the completion's sequence,
// so that a return which comes twice, or after the frame was used again, is harmless.
func ReturnCommand(e *cq.Entry) cq.Entry {
	return cq.Entry{Flags: returnFlags, Buf: e.Buf, Data: uint64(e.Meta.Seq()),
		Meta: cq.MetaNoContext}
}

// ReadFrame returns the record of the loaned frame that ref points into. Memory and reference come
// from another process: both are checked, and the record is a copy.
func ReadFrame(r *shm.Region, g Geometry, ref shm.Ref) (Record, error) {
	if ref.Offset() >= g.Bytes() {
		return Record{}, fmt.Errorf("xdp: frame at %v of %d bytes: %w", ref, g.Bytes(), ErrFrame)
	}
	loan, err := r.View(shm.MakeRef(ref.Region(), g.Chunk(ref.Offset())), RecordBytes)
	if err != nil {
		return Record{}, err
	}
	defer loan.Release()
	return ReadRecord(loan.Bytes()), nil
}
