package cq

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/futex"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
)

// createMemfds makes a queue without a name in any file system. Its options are resolved.
func (q *core) createMemfds(name string, o shape) error {
	seals := kind.LaneSeals
	if o.others() {
		seals = shm.SealOthers
		if err := futex.HasWaitMany(); err != nil && o.Wait != WaitNone {
			return err
		}
	}
	spec := o.attrs().ReaderSpec(name)
	if o.others() {
		// The clock of this boot, which no memfd outlives: a successor has a higher one.
		spec.Generation = uint64(spin.Now()) | 1
	}
	obj, err := place.Sealed(spec, seals, kind.InitReader)
	if err != nil {
		return err
	}
	return q.init(newUnnamedReader(o.rows()), obj, name, o, true)
}

// Accept lets the process at the other end of a connected socket, a stream or a seqpacket, attach
// one writer to a queue that is [Unnamed]. That process calls [Attach] with [Over]. Accept may be
// called from anywhere, also while the queue is read, and for several connections at once. The
// writer gets a lane of its own: a new one, or one whose writer detached or is proved dead, which
// goes on where that writer stopped.
//
// With CrossUser the peer must be on Options.Allow, with the user and groups that it had when it
// connected. Its lane is always new; its row is free once the reader has read the former lane to
// its end. A peer that goes silent in the middle is given ten seconds (ErrTimedOut), whatever the
// context says. Peers of one user that have not brought a lane have no more than a quarter of the
// rows; further ones wait for these. The queue keeps a descriptor of the connection until the
// lane's end, and never reads from it.
//
// The connection stays the caller's, without a deadline. Further rendezvous may follow on it, one
// after the other; after an error it should be closed. Nothing depends on it once Accept has
// returned: the death of a writer is proved and noticed as with named queues. [Queue.Serve] is a
// loop around Accept.
//
// The context ends an Accept whose peer is silent; so does Close (ErrClosed). Other errors are
// ErrLanes; ErrPeerGone; shm.ErrOwner for a peer of another user; ErrCorrupt and shm.ErrVersion for
// a peer that breaks the protocol; and the peer's own reason if it refused. After an error the peer
// is told why if it waits, every descriptor that came is closed, and the queue is as it was.
func (q *core) Accept(ctx context.Context, conn *net.UnixConn) error {
	_, err := q.accept(ctx, conn)
	return failed("accept", q.name, err)
}

// accept returns the row that was taken.
func (q *core) accept(ctx context.Context, conn *net.UnixConn) (bit int, err error) {
	peer, err := q.identify(conn)
	if err != nil {
		refuseConn(ctx, conn, err)
		return 0, err
	}
	return q.acceptFrom(ctx, conn, peer, false)
}

// identify refuses peers that may not write to the queue. For a queue of one's own user there is no
// more to know of them, and it returns nil.
func (q *core) identify(conn *net.UnixConn) (*place.Peer, error) {
	if q.opt.others() {
		return place.MeetPeer(conn, q.opt.Allow)
	}
	return nil, place.CheckPeer(conn)
}

// refuseConn tells a peer why it is not served.
func refuseConn(ctx context.Context, conn *net.UnixConn, err error) {
	place.Meet(ctx, conn, place.StepOffer).Finish(err)
}

// acceptFrom goes on with who that is. The peer is its own from now on. If it is limited, the peer
// has to begin in time.
func (q *core) acceptFrom(ctx context.Context, conn *net.UnixConn, peer *place.Peer,
	limited bool) (bit int, err error) {
	h, ok := q.side.(*unnamedReader)
	if !ok {
		return 0, &Error{Pkg: kind.Pkg, Op: "accept", Name: q.name, Err: syscall.EOPNOTSUPP,
			Hint: "writers find this queue by its name: use Attach"}
	}
	m := place.Meet(ctx, conn, place.StepOffer)
	defer func() { m.Finish(err) }()
	if limited {
		m.Limit(meetTimeout, place.ErrLate)
	}
	h.enter(m)
	defer h.leave(m)
	if !q.guard.enterAny() { // after enter: Close ends what it has to wait for
		peer.Close()
		return 0, ErrClosed
	}
	defer q.guard.leaveAny()
	ask, _, err := m.Hear(place.StepAsk)
	if theirs := Trust(ask.Trust); err == nil && theirs != q.opt.Trust {
		err = kind.Refuse(place.OpMeet, q.name, "Trust", theirs, q.opt.Trust, ErrInvalid)
	}
	if err != nil {
		peer.Close()
		return 0, err
	}
	if q.opt.others() {
		return q.acceptOther(m, h, peer)
	}
	return q.acceptOwn(m, h)
}

// acceptOwn goes on with a writer of the same user.
func (q *core) acceptOwn(m *place.Meeting, h *unnamedReader) (bit int, err error) {
	bit, former, err := h.allot(q.name, q.opt, q.rows, 0)
	if err != nil {
		return 0, err
	}
	defer h.release(bit)
	_, bell, err := q.enroll() // now, for later the writer could not find the bell
	if err != nil {
		return 0, err
	}
	fds := place.NoFDs
	fds[place.FDReader], fds[place.FDBell] = q.obj.FD(), bell
	if former != nil {
		fds[place.FDLane] = former.FD()
	}
	if q.face != nil {
		fds[place.FDEvent] = q.face.EventFD()
	}
	if err = m.Say(q.says(place.StepOffer, bit), fds); err != nil {
		return 0, err
	}
	fds, err = q.awaitLane(m, bit)
	if err != nil {
		return 0, err
	}
	defer fds.Close()
	if former == nil {
		lane, err := q.newLane(fds[place.FDLane], bit)
		if err != nil {
			return 0, err
		}
		h.bring(bit, lane)
	} else if fds[place.FDLane] >= 0 {
		return 0, kind.Refuse(place.OpMeet, q.name, "descriptors", "a lane", "none", ErrCorrupt)
	} else if err = claimed(former); err != nil {
		return 0, err
	}
	return bit, m.Say(q.says(place.StepDone, bit), place.NoFDs)
}

// newLane maps what a writer brought, of which nothing is trusted. That of another user is as large
// as this queue's options say and no larger.
func (q *core) newLane(fd, bit int) (obj *shm.Object, err error) {
	if fd < 0 {
		return nil, kind.Refuse(place.OpMeet, q.name, "descriptors", "no lane", "one", ErrCorrupt)
	}
	if q.opt.others() {
		most, err := laneBytesOf(q.opt)
		if err != nil {
			return nil, err
		}
		obj, err = shm.OpenPassed(fd, kind.LaneFile(bit), most)
		if err != nil {
			return nil, err
		}
	} else if obj, err = place.OpenPassed(fd, kind.LaneFile(bit), shm.ReadOnly); err != nil {
		return nil, err
	}
	if err = q.opt.attrs().LaneBelongs(obj, bit, q.obj.Header().UUID); err == nil {
		err = q.opt.attrs().LanePossible(obj, bit, &q.rows[bit])
	}
	if err == nil && !q.opt.others() {
		err = claimed(obj)
	}
	if errors.Is(err, kind.ErrOtherQueue) {
		err = kind.Refuse(place.OpMeet, q.name, "lane", "of another queue", "of this one", ErrCorrupt)
	}
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	return obj, nil
}

// claimed refuses a lane that its writer does not hold the lock of: its death would be a secret. It
// has given up, or died, since it sent the lane; we may have been stopped for long.
func claimed(lane *shm.Object) error {
	life, err := lane.Life()
	if err == nil && life != shm.Alive {
		err = kind.Refuse(place.OpMeet, lane.Name(), "lane", life, shm.Alive, ErrPeerGone)
	}
	return err
}

// attachConn becomes a writer, with what another reader left if there is any.
func attachConn(ctx context.Context, conn *net.UnixConn, o WriterOptions, l *handover) (*Writer,
	error) {
	if o.Trust > CrossUser {
		return nil, kind.Refuse("attach", "", "Trust", uint32(o.Trust), "SameUser or CrossUser",
			ErrInvalid)
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultPeerBytes
	}
	w := &Writer{}
	d := &unnamedWriter{m: place.Meet(ctx, conn, place.StepAsk), w: &w.laneWriter, opt: o,
		fds: place.NoFDs, handover: l}
	w.side = d
	err := w.open(o)
	d.m.Finish(err)
	d.settle()
	if err = w.opened(err); err != nil {
		return nil, err
	}
	if o.Trust == CrossUser {
		w.opt = o
		w.watchReader()
	}
	return w, nil
}

// defaultPeerBytes is WriterOptions.MaxBytes where it is 0.
const defaultPeerBytes = 64 << 20

// acceptOther goes on with a writer of another user, who has asked for a lane. Nobody's descriptor
// gives the other one a way to write: what is sent was opened for reading, and is sealed.
func (q *core) acceptOther(m *place.Meeting, h *unnamedReader, peer *place.Peer) (bit int,
	err error) {
	a := &attachment{peer: peer, pipe: -1}
	kept := false
	defer func() {
		if !kept {
			a.close()
		}
	}()
	m.Pause()
	done, err := h.turns.Take(m.Context(), peer.UID)
	if err != nil {
		return 0, m.Over()
	}
	defer done()
	m.Limit(meetTimeout, place.ErrSilent)
	bit, _, err = h.allot(q.name, q.opt, q.rows, peer.UID)
	if err != nil {
		return 0, err
	}
	defer h.release(bit)
	if err = q.offer(m, a, bit); err != nil {
		return 0, err
	}
	fds, err := q.awaitLane(m, bit)
	if err != nil {
		return 0, err
	}
	defer fds.Close()
	if a.obj, err = q.newLane(fds[place.FDLane], bit); err != nil {
		return 0, err
	}
	if a.words, err = kind.WordsOf[kind.LaneWords](a.obj, kind.SectLane, uint32(bit)); err != nil {
		_ = a.obj.Close()
		return 0, err
	}
	// The writer is told first. What it brought may have entries in it, which it gives to somebody
	// else unless it hears that we took them: after a message that could not be sent they must not
	// be read here, and after one that was sent nothing can go wrong any more.
	if err = m.Say(q.says(place.StepDone, bit), place.NoFDs); err != nil {
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
func (q *core) offer(m *place.Meeting, a *attachment, bit int) (err error) {
	fds := place.NoFDs
	defer func() { fds.Close() }()
	if fds[place.FDReader], err = q.obj.ShareFD(); err != nil {
		return err
	}
	if q.face != nil {
		if a.pipe, fds[place.FDEvent], err = eventfd.NewPipe(); err != nil {
			return err
		}
	}
	return m.Say(q.says(place.StepOffer, bit), fds)
}

// says is a message about a row.
func (q *core) says(step uint16, bit int) place.Message {
	return place.Message{Step: step, Row: uint32(bit), Queue: q.obj.Header().UUID,
		Generation: q.fid.Generation, Trust: uint32(q.opt.Trust)}
}

// awaitLane returns the descriptors of what a writer brings for a row, which the caller closes.
func (q *core) awaitLane(m *place.Meeting, bit int) (place.Passed, error) {
	reply, fds, err := m.Hear(place.StepLane)
	if err == nil && (reply.Row != uint32(bit) || reply.Queue != q.obj.Header().UUID ||
		Trust(reply.Trust) != q.opt.Trust) {
		fds.Close()
		err = kind.Refuse(place.OpMeet, q.name, "row", reply.Row, bit, ErrCorrupt)
	}
	return fds, err
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
