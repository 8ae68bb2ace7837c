package cq

import (
	"context"
	"errors"
	"net"
	"syscall"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// Follow goes on with the successor of a reader of another user that is proved dead or has
// detached. The successor has a queue of its own and calls [Queue.Accept] or [Queue.Serve] for it
// at the other end of conn. Follow returns the writer to post to from then on and closes w. The
// successor's queue gets what the former reader left: every entry that w published and the former
// reader had not released, in order, and ahead of what is posted next. Those that the former reader
// had handed out are marked FlagRedelivered. Credits are kept. Indices begin anew; [Writer.Next]
// tells where.
//
// Either all of that is with the successor, or, if Follow fails, nothing: then w stays as it is,
// and Follow can be called again with another connection. This holds whoever dies in the middle,
// and whenever. If the successor dies after it took the entries, it has a successor in turn. So a
// published entry is read once, or again with the mark, as long as its writer or its reader lives.
// It is gone when both are: memory without a name goes with the last process that has it.
//
// While the former reader lives and has not detached, even if it is stopped or silent, the error is
// a [*shm.BusyError]: nobody takes its place. A reader that has closed its queue is ErrClosed,
// since what it did not read is lost. ErrInvalid says that the successor's lanes are too small for
// the entries, credits or details that are left; ErrOverrun that w's lane was overrun and the
// successor's queue cannot be. Other errors are those of [Attach] over a socket. After an error the
// connection is of no use.
//
// Follow is for the goroutine that posts. It must be called once ReaderGone is closed, also if
// there is nothing to post: until then nobody else has what the former reader left.
func (w *Writer) Follow(ctx context.Context, conn *net.UnixConn) (*Writer, error) {
	return w.follow(ctx, conn, w.leave, func(next *laneWriter) bool {
		next.credits = w.credits
		open := !w.guard.isClosed()
		_ = w.end()
		return open
	})
}

// follow is given how to find out what is left while nobody posts, and how to close the writer and
// leave its credits to the next one, unless it is closed: what that says is of the former lane,
// which nobody has an interest in.
func (w *laneWriter) follow(ctx context.Context, conn *net.UnixConn,
	leave func() (*handover, error), close func(next *laneWriter) (open bool)) (*Writer, error) {
	l, err := leave()
	if err != nil {
		return nil, failed("follow", w.name, err)
	}
	next, err := attachConn(ctx, conn, w.opt, l)
	if err != nil {
		return nil, failed("follow", w.name, err)
	}
	w.bindSuccessor(&next.laneWriter)
	open := close(&next.laneWriter)
	crash.At(crash.FollowClosed)
	if !open { // it was closed meanwhile, by another goroutine, and that means all of it
		_ = next.Close()
		return nil, failed("follow", w.name, ErrClosed)
	}
	return next, nil
}

// left reports that the reader has left the queue to a successor. It does not look at it again.
func (w *laneWriter) left() bool { return w.ringer.Flags()&kind.RowLeft != 0 }

// handover is what a reader that is gone left of what a writer had published. Nothing of it changes
// any more.
type handover struct {
	from       *laneWriter
	head, tail uint64
	again      uint64 // below it entries were handed out, or may have been
	credits    uint64
}

// leave finds out what the former reader left.
func (w *laneWriter) leave() (*handover, error) {
	if w.trust != CrossUser || w.own {
		return nil, &Error{Pkg: kind.Pkg, Op: "follow", Name: w.name, Err: syscall.EOPNOTSUPP,
			Hint: "readers of one's own user adopt the queue, and writers stay"}
	}
	if !w.guard.enter() {
		return nil, w.guard.refusal()
	}
	defer w.guard.leave()
	gone := w.halt.Load()&haltGone != 0 || w.left()
	// What the reader wrote is final if it is gone, and so is this if it lives.
	if f := w.ringer.Flags(); f&(kind.RowClosed|kind.RowPoisoned) != 0 {
		return nil, w.refused(f)
	}
	if !gone {
		return nil, &shm.BusyError{Name: w.name, PID: w.peer.PID}
	}
	l := &handover{from: w, head: w.prod.Head(), tail: w.prod.Tail(), credits: w.credits}
	l.again = l.head
	for _, at := range []uint64{w.row.Peeked.Load(), w.words.Again.Load()} {
		// Below the head it is of before.
		if n := at - l.head; n <= l.tail-l.head {
			l.again = max(l.again-l.head, n) + l.head
		}
	}
	var corrupt *ring.CorruptError
	if err := w.prod.Err(); errors.As(err, &corrupt) {
		l.again = l.tail // who left an impossible index may have handed out anything
	} else if err != nil {
		return nil, errInUse
	}
	return l, nil
}

// fill gives a lane, born where its row stands, what is left, before anybody else can see it.
func (l *handover) fill(obj *shm.Object, bit int, q kind.Queue) error {
	w := l.from
	if !w.guard.enter() { // else its memory may be gone
		return w.guard.refusal()
	}
	defer w.guard.leave()
	m, err := kind.LaneOf[Entry](obj, bit, q)
	if err != nil {
		return err
	}
	n := l.tail - l.head
	if n+l.credits > uint64(q.Capacity) {
		return &Error{Pkg: kind.Pkg, Op: place.OpMeet, Name: w.name, Field: "Size", Got: q.Capacity,
			Want: n + l.credits, Err: ErrInvalid,
			Hint: "a successor needs lanes as large as its predecessor's"}
	}
	if m.Detail.Stride < w.detail.Stride {
		return kind.Refuse(place.OpMeet, w.name, "DataMaxBytes", m.Detail.Stride, w.detail.Stride,
			ErrInvalid)
	}
	if w.halt.Load()&haltLost != 0 {
		if q.Overrun != kind.MayOverrun {
			return ErrOverrun
		}
		m.Words.Overrun.Store(m.Words.Tail.Load() + n + 1)
	}
	l.copy(&m)
	return nil
}

// copy does it, for a lane with room enough.
func (l *handover) copy(m *kind.Lane[Entry]) {
	w, base := l.from, m.Words.Tail.Load()
	moved := func(at uint64) uint64 { // an index after an entry; 0 if that is not among the rest
		if n := at - l.head; n > 0 && n <= l.tail-l.head {
			return base + n
		}
		return 0
	}
	mask, from := uint64(len(m.Slots)-1), uint64(len(w.slots)-1)
	for i := range l.tail - l.head {
		e := w.slots[(l.head+i)&from]
		e.Meta = e.Meta&(1<<32-1) | Meta(base+i)<<32
		m.Slots[(base+i)&mask] = e
		*m.Detail.Record(base + i) = *w.detail.Record(l.head + i)
		copy(m.Detail.Data(base+i), w.detail.Data(l.head+i))
	}
	m.Words.Sol.Store(moved(w.words.Sol.Load()))
	m.Words.Err.Store(moved(w.words.Err.Load()))
	m.Words.Again.Store(base + l.again - l.head)
	m.Words.Tail.Store(base + l.tail - l.head)
}

// inherit marks what a former reader of this lane's writer may have handed out. The writer says how
// much that is: it had that one's words. More than the lane holds would mark entries that it posts
// later, which harms nobody else: whoever asks for the mark bounds it.
func (l *lane) inherit() {
	if again := l.words.Again.Load(); again-l.cons.Head() <= uint64(l.cons.Cap()) {
		l.marked = again
	}
}
