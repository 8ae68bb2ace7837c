package cq

import (
	"sync"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// acceptOther goes on with a writer of another user, who has asked for a lane. Nobody's descriptor
// gives the other one a way to write: what is sent was opened for reading, and is sealed.
func (q *core) acceptOther(m *meeting, h *memfdHome, peer *place.Peer) (bit int, err error) {
	a := &attachment{peer: peer, pipe: -1}
	kept := false
	defer func() {
		if !kept {
			a.close()
		}
	}()
	m.Pause()
	done, err := h.turns.take(m.Context(), peer.UID)
	if err != nil {
		return 0, m.over()
	}
	defer done()
	m.Limit(meetTimeout, errSilent)
	bit, _, err = h.allot(q.name, q.opt, q.rows, peer.UID)
	if err != nil {
		return 0, err
	}
	defer h.release(bit)
	if err = q.offer(m, a, bit); err != nil {
		return 0, err
	}
	reply, fds, err := m.receive(stepLane)
	if err != nil {
		return 0, err
	}
	defer fds.close()
	queue := q.obj.Header().UUID
	if reply.row != uint32(bit) || reply.queue != queue || reply.trust != q.opt.Trust {
		return 0, kind.Refuse(opMeet, q.name, "row", reply.row, bit, ErrCorrupt)
	}
	if a.obj, err = q.newOthersLane(fds[fdLane], bit); err != nil {
		return 0, err
	}
	if a.words, err = kind.WordsOf[kind.LaneWords](a.obj, kind.SectLane, uint32(bit)); err != nil {
		_ = a.obj.Close()
		return 0, err
	}
	// The writer is told first. What it brought may have entries in it, which it gives to somebody
	// else unless it hears that we took them: after a message that could not be sent they must not
	// be read here, and after one that was sent nothing can go wrong any more.
	err = m.send(message{step: stepDone, row: uint32(bit), queue: queue, trust: q.opt.Trust}, noFDs)
	if err != nil {
		_ = a.obj.Close()
		return 0, err
	}
	crash.At(crash.AcceptTold)
	kept, a.bit = true, bit
	// Before the lane can be opened, and with it be retired, which ends the watch. What is told
	// before is seen when it is opened.
	// The queue's memory stays until its peers are closed, which waits for this. So it does not ask
	// whether the queue is closed: a close that fails would make it forget the only notice.
	peer.Watch(func() {
		q.bell.Mark(bit)
		processWatch.nudge()
	})
	h.attach(bit, a)
	// The reader opens the lane with the first mark from here on.
	q.bell.Mark(bit)
	return bit, nil
}

// offer sends a row, the reader's object, and for a queue with a descriptor the end of a pipe.
func (q *core) offer(m *meeting, a *attachment, bit int) (err error) {
	fds := noFDs
	defer func() { fds.close() }()
	if fds[fdReader], err = q.obj.ShareFD(); err != nil {
		return err
	}
	if q.face != nil {
		if a.pipe, fds[fdEvent], err = eventfd.NewPipe(); err != nil {
			return err
		}
	}
	return m.send(message{step: stepOffer, row: uint32(bit), queue: q.obj.Header().UUID,
		generation: q.fid.Generation, trust: q.opt.Trust}, fds)
}

// newOthersLane maps what a writer of another user brought. It is as large as this queue's options
// say and no larger, and begins where the row stands.
func (q *core) newOthersLane(fd, bit int) (*shm.Object, error) {
	if fd < 0 {
		return nil, kind.Refuse(opMeet, q.name, "descriptors", "no lane", "one", ErrCorrupt)
	}
	most, err := laneBytesOf(q.opt)
	if err != nil {
		return nil, err
	}
	obj, err := shm.OpenPassed(fd, kind.LaneFile(bit), most)
	if err != nil {
		return nil, err
	}
	err = q.opt.attrs().LaneBelongs(obj, bit, q.obj.Header().UUID)
	if err == kind.ErrOtherQueue {
		err = kind.Refuse(opMeet, q.name, "lane", "of another queue", "of this one", ErrCorrupt)
	}
	if err == nil {
		err = q.opt.attrs().LanePossible(obj, bit, &q.rows[bit])
	}
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	return obj, nil
}

// watchReader has posts fail once the reader of another user is proved dead.
func (w *laneWriter) watchReader() {
	w.gone = make(chan struct{})
	var once sync.Once
	w.peer.Watch(func() {
		if w.peer.Gone() || w.peer.HungUp() && w.left() {
			w.halt.Or(haltGone)
			once.Do(func() { close(w.gone) })
			processWatch.nudge()
		}
	})
}

// ReaderGone returns a channel that is closed when the reader, of another user, is proved dead: its
// process has ended, and the connection over which this writer attached; or when it has detached
// and closed that connection. From then on posts are ErrPeerGone, and [Writer.Follow] goes on with
// a successor. For a queue of one's own user it is nil, which never becomes ready. A reader that
// closes the queue is told of by ErrClosed at the next post.
func (w *laneWriter) ReaderGone() <-chan struct{} { return w.gone }
