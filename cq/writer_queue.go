package cq

import (
	"errors"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// Queue returns the name of the queue that the writer posts to, and which one of that name it is.
// It is for those who show what is bound to what, while the writer is open.
func (w *Writer) Queue() (name string, id shm.UUID) {
	if w.reader == nil {
		return w.name, shm.UUID{}
	}
	return w.name, w.reader.Header().UUID
}

// halted says why a writer cannot go on.
func halted(h uint32) error {
	if h&haltGone != 0 {
		return ErrPeerGone
	}
	return ErrOverrun
}

// refused translates what the reader wrote beside the parked bit. It is never nil.
func (w *Writer) refused(flags uint64) error {
	switch {
	case flags&kind.RowClosed != 0:
		return ErrClosed
	case flags&kind.RowOverrun != 0:
		return ErrOverrun
	case flags&(kind.RowLeft|kind.RowPoisoned) == kind.RowLeft && w.trust == CrossUser:
		return ErrPeerGone
	}
	e := &LaneError{Lane: w.bit, PID: w.reader.Owner().PID, Field: "lane", Err: ErrCorrupt}
	if flags&kind.RowPoisoned == 0 { // bits that mean nothing: the reader cannot be trusted
		e.Field = "row"
	}
	return e
}

// full says what no room means in this queue, and why there may be none.
func (w *Writer) full() error {
	if err := w.prod.Err(); errors.Is(err, ring.ErrMisuse) {
		return errInUse
	} else if err != nil {
		return &LaneError{Lane: w.bit, PID: w.reader.Owner().PID, Field: "head", Err: err}
	}
	plainCount(&w.words.Refused, 1)
	if w.policy != OverrunQueue {
		w.remind()
		return ErrFull
	}
	// From here on the lane is final: the reader drains it and tells the queue. It is marked also
	// if the reader is awake, who would find out only when the lane is drained.
	w.halt.Or(haltLost)
	w.words.Overrun.Store(w.prod.Tail() + 1)
	crash.At(crash.Overran)
	w.ringer.Attach()
	return ErrOverrun
}

// remind rings for a lane that is parked and has too little room for what was asked. The mark of
// what was published last is a hint, which another process of the same user can have taken to its
// grave or wiped, and no publish may come before there is room: the reader would wait for a mark,
// and the writer for room. It rings as that publish did, but a full lane ends any wait.
func (w *Writer) remind() {
	if w.trust != SameUser || w.ringer.Flags() != doorbell.Parked {
		return
	}
	switch w.prod.Free() {
	case w.prod.Cap():
		return // more was asked than the lane can hold
	case 0:
		w.ringer.Attach()
	default:
		holds := doorbell.HoldsSolicited
		if w.words.Err.Load() > w.prod.Head() {
			holds |= doorbell.HoldsError
		}
		w.ringer.Remind(w.prod.Tail(), holds)
	}
}
