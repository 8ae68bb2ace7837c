package cq

import (
	"context"
	"runtime"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// How a writer waits for room. A reader wakes no writers, so the writer looks: at first without
// sleeping, then after pauses that double. It finds room at most twice as late as that came, and
// never more than roomMost late.
const (
	roomYields = 16
	roomFirst  = 20 * time.Microsecond
	roomMost   = 10 * time.Millisecond
)

// PostContext is Post that waits for room. It sleeps between looks at the lane, for up to 10 ms,
// and costs a reader nothing. It ends when the entry is posted, with an error of Post other than
// ErrFull, or
//
//   - when the context ends: the error matches ctx.Err() and its cause. The context is not looked
//     at while there is room.
//   - when the queue has no reader any more: ErrPeerGone. The reader is proved dead, or has
//     detached, and nobody has taken its place for 100 ms. Nothing is lost: what was posted waits
//     for a successor, and PostContext can be called again, which waits as long again. A reader
//     that is stopped, or that a successor has replaced, is waited for.
//
// It takes less than half a second to notice that there is no reader. Like Post it is for the
// goroutine that uses the writer; Close may come from anywhere and ends it with ErrClosed.
func (w *Writer) PostContext(ctx context.Context, e *Entry) error {
	err := w.Post(e)
	if err != ErrFull {
		return err
	}
	wait := roomWait{w: &w.laneWriter, ctx: ctx, full: w.stillFull}
	return wait.until(func() error { return w.Post(e) })
}

// WriteContext is Write that waits for room, as [Writer.PostContext] does. Other goroutines may
// write meanwhile, and get room that this one waits for.
func (w *EventWriter) WriteContext(ctx context.Context, ev *Event) (int, error) {
	n, err := w.Write(ev)
	if err != ErrFull {
		return n, err
	}
	wait := roomWait{w: w.laneWriter, ctx: ctx, full: w.stillFull}
	err = wait.until(func() (err error) {
		n, err = w.Write(ev)
		return err
	})
	return n, err
}

// roomWait is one call that waits for room.
type roomWait struct {
	w      *laneWriter
	ctx    context.Context
	full   func() bool
	yields int
	pause  time.Duration
	looked time.Time // when the reader was looked for last
	alone  bool      // it was not there then
}

// until posts again whenever that is worth while.
func (r *roomWait) until(post func() error) error {
	err := ErrFull
	for err == ErrFull {
		if err = r.once(); err == nil {
			err = post()
		}
	}
	return err
}

// once returns nil when another post is worth while, and else why there will be none.
func (r *roomWait) once() error {
	if r.looked.IsZero() {
		r.looked = time.Now()
	}
	for {
		if err := r.sleep(); err != nil {
			return err
		}
		if !r.full() {
			return nil
		}
		if now := time.Now(); now.Sub(r.looked) >= r.w.lookEvery() {
			r.looked = now
			return r.lookForReader() // a post rings again for a lane whose mark was lost
		}
	}
}

func (r *roomWait) sleep() error {
	if r.yields < roomYields {
		r.yields++
		runtime.Gosched()
		return nil
	}
	r.pause = min(max(2*r.pause, roomFirst), roomMost)
	select {
	case <-r.ctx.Done():
		return kind.Ended(r.ctx)
	case <-r.w.gone: // the next post says so
	case <-time.After(r.pause):
	}
	return nil
}

// lookForReader fails if nobody was there in two looks in a row: one reader may just follow
// another.
func (r *roomWait) lookForReader() error {
	alone := r.w.readerless()
	if alone && r.alone {
		return &Error{Pkg: kind.Pkg, Op: "post", Name: r.w.name, Err: ErrPeerGone,
			Hint: "nobody reads the queue: post again when it has been opened again"}
	}
	r.alone = alone
	return nil
}

// lookEvery is how often a writer that waits for room looks whether there is a reader.
func (w *laneWriter) lookEvery() time.Duration {
	if w.look > 0 {
		return w.look
	}
	return time.Duration(sliceNs)
}

// readerless reports that the queue's reader is proved dead, or has left the queue to a successor
// that has not come. Of another user's that is in Post's answers.
func (w *laneWriter) readerless() bool {
	if w.own || w.trust != SameUser || !w.guard.enterAny() {
		return false
	}
	defer w.guard.leaveAny()
	if w.reader.Owner().State == shm.StateReleased {
		return true
	}
	_, died, err := w.reader.OwnerDied()
	return died && err == nil
}

// stillFull reports that nothing has changed for one who found the lane full.
func (w *laneWriter) stillFull() bool {
	if !w.guard.enter() {
		return false
	}
	full := w.isFull()
	w.guard.leave()
	return full
}

func (w *laneWriter) isFull() bool {
	return w.prod.Free() <= int(w.credits) && w.prod.Err() == nil && w.halt.Load() == 0 &&
		w.ringer.Flags() <= wake.Parked
}

func (l *eventLane) stillFull() bool {
	if !l.lock() {
		return false
	}
	full := l.isFull()
	l.unlock()
	return full
}
