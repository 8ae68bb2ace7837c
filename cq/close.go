package cq

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
)

// Close destroys the queue (fi_close): completions that were not read are lost, writers learn of
// it at their next post, and the name is free again once they have closed too. Blocked reads
// return ErrClosed. Close waits for calls in other goroutines to end; it fails with ErrBusy while
// entries are handed out by Peek, while this process's own Writer is open, and while the queue is
// in a set or channel or something of this process is bound to it, or to one of its writers:
// [CloseAll] has the order. EMFILE says that the queue is closed and that the lane of a former
// writer may be left: it stays unless its writer lives, which removes it when it closes. Closing
// twice is harmless.
func (q *Queue) Close() error {
	return q.endAlone(opClose)
}

// Detach leaves the queue to a successor, which finds it with Open: nothing is lost, and writers
// go on until their lanes are full, with all that is bound to them. All
// else, and when it is ErrBusy, is as with Close.
//
// A queue for other users has no name either, but each of its writers has what was not read: they
// get ErrPeerGone at their next post and take it to a successor, see [Writer.Follow]. What is
// in the queue's own lane is lost. Of another queue without a name Detach is errors.ErrUnsupported.
func (q *Queue) Detach() error {
	if err := q.findable(); err != nil {
		return err
	}
	return q.endAlone(opDetach)
}

// endAlone ends the queue, unless this process posts to it by a writer of the queue's own.
func (q *Queue) endAlone(op string) error {
	q.selfMu.Lock()
	defer q.selfMu.Unlock()
	if q.self != nil && !q.self.guard.isOver() {
		return &Error{Pkg: kind.Pkg, Op: op, Name: q.name, Err: ErrBusy,
			Hint: "close its own Writer first"}
	}
	return q.end(op)
}

// What ends a queue.
const (
	opClose  = "close"
	opDetach = "detach"
)

// findable says why no successor could find the queue.
func (q *core) findable() error {
	if _, ok := q.home.(*memfdHome); ok && !q.opt.others() {
		return &Error{Pkg: kind.Pkg, Op: opDetach, Name: q.name, Err: syscall.EOPNOTSUPP,
			Hint: "nobody could find a queue without a name: close it"}
	}
	return nil
}

// wake ends what blocks in the queue.
func (q *core) wake() {
	q.home.interrupt()
	q.bell.Kick()
}

// end ends the queue, if nothing holds it open.
func (q *core) end(op string) error {
	if q.guard.isOver() {
		return nil
	}
	if err := q.refuseHolders(op); err != nil {
		return err
	}
	first, err := q.guard.close(q.wake)
	if err != nil {
		q.holders.reopen()
		return &Error{Pkg: kind.Pkg, Op: op, Name: q.name, Err: err, Hint: "release what Peek handed out"}
	}
	if !first {
		return nil
	}
	if op == opDetach && q.opt.others() {
		q.leaveRows()
	}
	last := q.obj.Release
	if op == opClose {
		last = q.destroy
	}
	if err = q.drop(last); op == opClose {
		// Writers that are still attached keep the directory; the last of them removes it.
		q.home.vacate()
		crash.At(crash.CloseVacated)
	}
	if err = errors.Join(err, q.home.close()); err != nil {
		return fmt.Errorf("cq: %s %q: %w", op, q.name, err)
	}
	return nil
}

// drop gives everything back that the queue holds in this process, but for its home, calling last
// before its memory goes. Nobody is inside any more.
func (q *core) drop(last func() error) error {
	if q.holders.hasOwn() {
		_ = q.opt.WaitSet.Remove(q.whole)
	}
	q.unbindEvents()
	close(q.gone)
	q.ticker.Wait()
	q.watches.Lock()
	for _, l := range q.lanes {
		if l != nil {
			l.notice.rest()
		}
	}
	q.watches.Unlock()
	q.home.partAll()
	q.keeper.close()
	q.silence()
	err := q.vacateSeat()
	crash.At(crash.DetachSilenced)
	err = errors.Join(err, last())
	q.face.Close()
	return errors.Join(err, q.objects.close(), q.obj.Close())
}

// silence keeps writers from ringing a reader that leaves: nobody would hear them, and the number
// of its descriptor soon means another file of this process.
func (q *core) silence() {
	if q.bell != nil {
		q.bell.Lock()
		q.bell.Disarm()
		q.bell.Unlock()
	}
	if q.words != nil {
		q.words.Face.Store(0)
	}
}

// vacateSeat gives the queue's bit in the process's bell back. Writers do not ring it any more, but
// for one that is late.
func (q *core) vacateSeat() error {
	q.seatMu.Lock()
	defer q.seatMu.Unlock()
	if q.bit < 0 {
		return nil
	}
	bit := q.bit
	q.bit = -1
	return processDomain.leave(bit, &q.words.Bell)
}

// destroy tells writers that the queue is closed and removes its names.
func (q *core) destroy() error {
	kind.Condemn(q.words, q.rows)
	crash.At(crash.CloseCondemned)
	err := q.home.destroy(q.obj, q.opt.rows())
	crash.At(crash.CloseUnlinked)
	return err
}

// leaveRows tells writers of other users that this reader does not read any more. They hear of it
// when its connections close, and believe it only then: the words of their rows are final before.
func (q *core) leaveRows() {
	for i := range q.rows {
		q.rows[i].Bell.Parked.Or(kind.RowLeft)
	}
}

// tick marks lanes whose writer's death gives no notice, now and then, for whoever waits on
// a descriptor, a set or a channel.
func (q *core) tick() {
	q.ticker.Go(func() {
		t := time.NewTicker(time.Duration(sliceNs))
		defer t.Stop()
		for {
			select {
			case <-q.gone:
				return
			case <-t.C:
				q.markUnwatched()
			}
		}
	})
}

func (q *core) markUnwatched() {
	if !q.guard.enterAny() {
		return
	}
	defer q.guard.leaveAny()
	q.watches.Lock()
	defer q.watches.Unlock()
	for _, bit := range q.unwatched {
		q.bell.Mark(bit)
	}
}

// removed reports errors that say that a name is gone already.
func removed(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY)
}
