package cq

import "github.com/shmring/shmring/internal/kind"

// ReadErr takes the error entry that is next (fi_cq_readerr) and fills e. ErrWouldBlock says that
// the next entry is not an error; ErrBusy that entries handed out by Peek are not released. As much
// of the error data as the capacity of e.ErrData allows is copied there; the memory is the
// caller's.
func (q *Queue) ReadErr(e *ErrorEntry) error {
	if !q.enter() {
		return q.guard.refusal()
	}
	err := q.readErr(e)
	q.leave()
	return err
}

func (q *Queue) readErr(e *ErrorEntry) error {
	if q.out != nil {
		return ErrBusy
	}
	l, s, detail := q.nextError()
	if l == nil {
		return ErrWouldBlock
	}
	l.fill(e, &s, &detail)
	if e.From != nil {
		*e.From, _ = q.origin(l)
	}
	q.errLane = nil
	l.release(1)
	return nil
}

func (l *lane) fill(e *ErrorEntry, s *Entry, d *kind.Record) {
	e.fill(s, d)
	if l.again() > 0 {
		e.Flags |= FlagRedelivered
		e.Redelivered = true
	}
}

// fill bounds what the writer says and copies it.
func (e *ErrorEntry) fill(s *Entry, d *kind.Record) {
	buf, n := d.CopyData(e.ErrData, d.Data[:])
	*e = ErrorEntry{Context: s.Context, Flags: s.Flags, Len: s.Len, Buf: s.Buf, Data: s.Data,
		Tag: s.Tag, Src: s.Src, OverrunBytes: d.OverrunBytes, Err: Errno(d.Err),
		ProvErrno: d.ProvErrno, ErrData: buf, ErrDataBytes: n, From: e.From}
	if s.Meta&MetaNoContext != 0 {
		e.Flags |= FlagNoContext
	}
}

// nextError returns the lane whose next entry is an error, or nil, with private copies of the entry
// and its record: everything that follows looks at these.
func (q *core) nextError() (l *lane, s Entry, d kind.Record) {
	if q.errLane == nil {
		q.findError()
	}
	if l = q.errLane; l == nil {
		return nil, s, d
	}
	a, _ := l.cons.Peek(1)
	if len(a) == 0 { // another goroutine took it, which may not be here
		q.errLane = nil
		return nil, s, d
	}
	return l, a[0], *l.detail.Record(l.cons.Head())
}

func (q *core) findError() {
	q.takeMarks()
	r := q.newRound()
	for bit := r.next(); bit >= 0; bit = r.next() {
		l := q.lanes[bit]
		if a, _ := l.cons.Peek(1); len(a) > 0 && loadMeta(&a[0])&kindMask == kindError {
			q.errLane = l
			return
		}
	}
}
