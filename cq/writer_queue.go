package cq

import "github.com/shmring/shmring/shm"

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

// refused translates what the reader wrote beside the parked bit. It is never nil, whatever that is.
func (w *Writer) refused(flags uint64) error {
	switch {
	case flags&rowClosed != 0:
		return ErrClosed
	case flags&rowOverrun != 0:
		return ErrOverrun
	case flags&rowLeft != 0 && w.trust == TrustOthers:
		return ErrPeerGone
	}
	e := &LaneError{Lane: w.bit, PID: w.reader.Owner().PID, Field: "lane", Err: ErrCorrupt}
	if flags&rowPoisoned == 0 { // bits that mean nothing: the reader cannot be trusted
		e.Field = "row"
	}
	return e
}

// Bytes returns how much memory the writer's lane takes, which this process made; 0 for a writer on
// the reader's own lane. It is for those who account for it, while the writer is open.
func (w *Writer) Bytes() uint64 {
	if w.obj == nil {
		return 0
	}
	return uint64(len(w.obj.Bytes()))
}
