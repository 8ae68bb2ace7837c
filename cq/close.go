package cq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
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
// else, and when it is ErrBusy, is as with Close. The queue stays until it has a successor, or
// until [Remove], also if it is Ephemeral.
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
	if !q.side.Named() && !q.opt.others() {
		return &Error{Pkg: kind.Pkg, Op: opDetach, Name: q.name, Err: syscall.EOPNOTSUPP,
			Hint: "nobody could find a queue without a name: close it"}
	}
	return nil
}

// wake ends what blocks in the queue.
func (q *core) wake() {
	q.side.Interrupt()
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
	q.bell.Lock()  // who is inside of a door leaves
	q.vacant = nil // and none opens any more
	q.bell.Unlock()
	if op == opDetach && q.opt.others() {
		q.leaveRows()
	}
	last := q.obj.Release
	if op == opClose {
		last = q.destroy
	}
	if err = q.drop(last); op == opClose {
		// Writers that are still attached keep the directory; the last of them removes it.
		q.side.RemoveDir()
		crash.At(crash.CloseVacated)
	}
	if err = errors.Join(err, q.side.Close()); err != nil {
		return fmt.Errorf("cq: %s %q: %w", op, q.name, err)
	}
	return nil
}

// drop gives everything back that the queue holds in this process, but for its side, calling last
// before its memory goes. Nobody is inside any more.
func (q *core) drop(last func() error) error {
	if q.holders.hasOwn() {
		_ = q.opt.WaitSet.Remove(q.whole)
	}
	q.unbindEvents()
	close(q.gone)
	q.later.Close()
	processWatch.remove(unwatchedLanes{q})
	q.watches.Lock()
	q.unwatched = nil // of a look that has begun
	for _, l := range q.lanes {
		if l != nil {
			l.notice.Rest()
		}
	}
	q.watches.Unlock()
	q.side.DetachAll()
	q.keeper.close()
	q.silence()
	err := q.leaveSeat()
	crash.At(crash.DetachSilenced)
	err = errors.Join(err, last())
	q.face.Close()
	return errors.Join(err, q.obj.Close())
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

// leaveSeat gives the queue's bit in the process's bell back. Writers do not ring it any more, but
// for one that is late.
func (q *core) leaveSeat() error {
	q.seatMu.Lock()
	defer q.seatMu.Unlock()
	if q.bit < 0 {
		return nil
	}
	bit := q.bit
	q.bit = -1
	return place.ProcessBell.Leave(bit, &q.words.Bell)
}

// destroy tells writers that the queue is closed and removes its names.
func (q *core) destroy() error {
	kind.Condemn(q.words, q.rows)
	crash.At(crash.CloseCondemned)
	err := q.side.Destroy()
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

// removed reports errors that say that a name is gone already.
func removed(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY)
}

// CloseAll closes what a program has open, in whatever order it is given: what is bound goes before
// what it is bound to. Members leave the sets and channels that are among the objects, also with
// events that nobody acknowledged, and counters the memory regions; event queues report no more.
// One call in place of a deferred Close for each object cannot get the order wrong:
//
//	var q *cq.Queue
//	var events *cq.EventQueue
//	defer func() { err = errors.Join(err, cq.CloseAll(d, q, events)) }()
//
// Objects of other packages, endpoints for one, are closed first, the last one of them first;
// a [shm.Object] and a [shm.Dir] are closed last. Absent objects, nil, are left out, and so are
// those that are closed already: calling it again is harmless.
//
// It goes on after an error and returns all of them joined. An object that is bound to one that was
// not given, or of which entries are handed out, is ErrBusy, and so is what that is bound to: give
// that back and call CloseAll again. Queues are closed, not left to a successor: call
// [Queue.Detach] before for those. It may be called from anywhere.
func CloseAll(objects ...io.Closer) error {
	objects = closingOrder(objects)
	for _, o := range objects {
		switch o := o.(type) {
		case interface{ dismiss() }: // a set, a channel, or a region with its counters
			o.dismiss()
		case *EventQueue: // two event queues may report to each other
			_ = o.BindEvents(nil)
		case *EventWriter:
			_ = o.BindEvents(nil)
		}
	}
	var all error
	for _, o := range objects {
		if err := o.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			all = errors.Join(all, err)
		}
	}
	return all
}

// closingOrder returns the objects that there are, each before what it can be bound to.
func closingOrder(objects []io.Closer) (out []io.Closer) {
	for _, o := range slices.Backward(objects) {
		if !kind.Absent(o) {
			out = append(out, o)
		}
	}
	slices.SortStableFunc(out, func(a, b io.Closer) int { return closingRank(a) - closingRank(b) })
	return out
}

// closingRank is higher for what others can be bound to. Sets and channels have let their members
// go, but for those that were opened in a set, which close before it.
func closingRank(o io.Closer) int {
	switch o.(type) {
	case *Writer: // report to event queues
		return 1
	case *MemoryRegion: // to counters, in an object
		return 2
	case *Queue: // report to event queues
		return 3
	case *Counter:
		return 4
	case *AddressVector:
		return 5
	case *EventWriter:
		return 6
	case *EventQueue:
		return 7
	case *Channel:
		return 8
	case *PollSet:
		return 9
	case *WaitSet:
		return 10
	case *shm.Object:
		return 11
	case *shm.Dir:
		return 12
	}
	return 0 // of somebody who uses what is here
}

func (s *WaitSet) dismiss() {
	for _, m := range s.list.guests() {
		_ = s.Remove(m)
	}
}

func (s *PollSet) dismiss() {
	for _, m := range s.list.guests() {
		_ = s.Remove(m)
	}
}

func (r *MemoryRegion) dismiss() {
	r.mu.Lock()
	all := slices.Clone(r.counters)
	r.mu.Unlock()
	for _, b := range all {
		_ = r.unbindCounter(b.Counter)
	}
}

// guests returns the members that do not go with the set.
func (l *memberList) guests() (out []Waitable) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for m, bit := range l.bits {
		if f, is := l.byBit[bit].face.(*queueFace); !is || !f.own {
			out = append(out, m)
		}
	}
	return out
}

// dismiss detaches all queues, and acknowledges for whoever got events of them.
func (c *Channel) dismiss() {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	c.mu.Lock()
	all := make([]*attached, 0, len(c.byFID))
	for _, a := range c.byFID {
		all = append(all, a)
	}
	c.mu.Unlock()
	for _, a := range all {
		if c.Detach(over, a.q) == nil {
			continue
		}
		c.mu.Lock() // no event comes any more
		open := a.got - a.acks
		c.mu.Unlock()
		_ = c.Ack(a.q, int(open))
		_ = c.Detach(over, a.q)
	}
}
