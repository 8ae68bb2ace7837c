package place

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// MeetTimeout is how long a peer that connected is waited for if it does not begin, and by either
// side for another user's next message once it has begun.
var MeetTimeout = 10 * time.Second // a variable for tests only

// Accept has the process at the other end of a connection bring a lane, and returns its row. peer
// is who that is if it may be of another user, and is Lanes' own from now on. If it is limited, the
// peer has to begin in time.
func (h *Lanes) Accept(ctx context.Context, conn *net.UnixConn, peer *Peer,
	limited bool) (row int, err error) {
	m := Meet(ctx, conn, StepOffer)
	defer func() { m.Finish(err) }()
	a := &Attachment{Peer: peer, Pipe: -1}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if limited {
		m.Limit(MeetTimeout, ErrLate)
	}
	h.enter(m)
	defer h.leave(m)
	if !h.Enter() { // after enter: Close ends what it has to wait for
		return 0, kind.ErrClosed
	}
	defer h.Leave()
	ask, _, err := m.Hear(StepAsk)
	if err == nil {
		err = sameTrust(h.Name, h.Queue, ask.Trust)
	}
	if err != nil {
		return 0, err
	}
	user := 0
	if h.Queue.Others() {
		user = peer.UID
		m.Pause()
		done, err := h.turns.Take(m.Context(), user)
		if err != nil {
			return 0, m.Over()
		}
		defer done()
		m.Limit(MeetTimeout, ErrSilent)
	}
	row, former, err := h.allot(user)
	if err != nil {
		return 0, err
	}
	defer h.release(row)
	a.Row = row
	return row, h.meet(m, a, former)
}

// meet is the rest of a rendezvous, for a row and its former lane. Nobody's descriptor gives a
// writer of another user a way to write: what it is sent was opened for reading, and is sealed.
func (h *Lanes) meet(m *Meeting, a *Attachment, former *shm.Object) error {
	if err := h.offer(m, a, former); err != nil {
		return err
	}
	fds, err := h.awaitLane(m, a.Row)
	if err != nil {
		return err
	}
	defer fds.Close()
	if former != nil {
		if fds[FDLane] >= 0 {
			return kind.Refuse(OpMeet, h.Name, "descriptors", "a lane", "none", kind.ErrCorrupt)
		}
		if err = claimed(former); err != nil {
			return err
		}
		return m.Say(h.says(StepDone, a.Row), NoFDs)
	}
	obj, err := h.newLane(fds[FDLane], a.Row)
	if err != nil {
		return err
	}
	if !h.Queue.Others() {
		h.bring(a.Row, obj, nil)
		return m.Say(h.says(StepDone, a.Row), NoFDs)
	}
	return h.attach(m, a, obj)
}

// attach tells a writer of another user first. What it brought may have entries in it, which it
// gives to somebody else unless it hears that we took them: after a message that could not be sent
// they must not be read here, and after one that was sent nothing can go wrong any more.
func (h *Lanes) attach(m *Meeting, a *Attachment, obj *shm.Object) (err error) {
	a.Obj = obj
	a.words, err = kind.WordsOf[kind.LaneWords](obj, kind.SectLane, uint32(a.Row))
	if err == nil {
		err = m.Say(h.says(StepDone, a.Row), NoFDs)
	}
	if err != nil {
		_ = obj.Close()
		return err
	}
	crash.At(crash.AcceptTold)
	// Before the lane can be opened, and with it be retired, which ends the watch. What is told
	// before is seen when it is opened.
	// The queue's memory stays until its peers are closed, which waits for this. So it does not ask
	// whether the queue is closed: a close that fails would make it forget the only notice.
	a.Peer.Watch(func() { h.Mark(a.Row) })
	h.bring(a.Row, obj, a)
	// The reader opens the lane with the first mark from here on.
	h.Mark(a.Row)
	return nil
}

// offer sends a row: the reader's object, what raises its descriptor if it has one, and to the same
// user the bell of the process and the row's former lane.
func (h *Lanes) offer(m *Meeting, a *Attachment, former *shm.Object) (err error) {
	fds := NoFDs
	if h.Queue.Others() {
		defer func() { fds.Close() }()
		if fds[FDReader], err = h.Reader.ShareFD(); err != nil {
			return err
		}
		if h.face != nil {
			if a.Pipe, fds[FDEvent], err = eventfd.NewPipe(); err != nil {
				return err
			}
		}
		return m.Say(h.says(StepOffer, a.Row), fds)
	}
	if err = h.Enroll(); err != nil { // now, for later the writer could not find the bell
		return err
	}
	fds[FDReader], fds[FDBell] = h.Reader.FD(), ProcessBell.FD()
	some := fds[FDReader] >= 0 && fds[FDBell] >= 0
	if former != nil {
		fds[FDLane] = former.FD()
		some = some && fds[FDLane] >= 0
	}
	if !some {
		return errNoDescriptor
	}
	if h.face != nil {
		fds[FDEvent] = h.face.EventFD()
	}
	return m.Say(h.says(StepOffer, a.Row), fds)
}

// errNoDescriptor: an object that goes to the peer can have no descriptor now.
var errNoDescriptor = os.NewSyscallError("open", syscall.EMFILE)

// says is a message about a row.
func (h *Lanes) says(step uint16, row int) Message {
	return Message{Step: step, Row: uint32(row), Queue: h.Reader.Header().UUID,
		Generation: h.Reader.Generation(), Trust: uint32(h.Queue.Trust)}
}

// awaitLane returns the descriptors of what a writer brings for a row, which the caller closes.
func (h *Lanes) awaitLane(m *Meeting, row int) (Passed, error) {
	reply, fds, err := m.Hear(StepLane)
	if err == nil && (reply.Row != uint32(row) || reply.Queue != h.Reader.Header().UUID ||
		uint64(reply.Trust) != h.Queue.Trust) {
		fds.Close()
		err = kind.Refuse(OpMeet, h.Name, "row", reply.Row, row, kind.ErrCorrupt)
	}
	return fds, err
}

// newLane maps what a writer brought, of which nothing is trusted. That of another user is as large
// as this queue's options say and no larger.
func (h *Lanes) newLane(fd, row int) (obj *shm.Object, err error) {
	if fd < 0 {
		return nil, kind.Refuse(OpMeet, h.Name, "descriptors", "no lane", "one", kind.ErrCorrupt)
	}
	queue := h.Reader.Header().UUID
	if h.Queue.Others() {
		most, err := shm.Plan(h.Queue.LaneSpec("lane", row, queue))
		if err != nil {
			return nil, err
		}
		obj, err = shm.OpenPassed(fd, kind.LaneFile(row), most)
		if err != nil {
			return nil, err
		}
	} else if obj, err = OpenPassed(fd, kind.LaneFile(row), shm.ReadOnly); err != nil {
		return nil, err
	}
	err = h.Queue.LaneFits(obj, row, queue, &h.Rows[row])
	if err == nil && !h.Queue.Others() {
		err = claimed(obj)
	}
	if errors.Is(err, kind.ErrOtherQueue) {
		err = kind.Refuse(OpMeet, h.Name, "lane", "of another queue", "of this one", kind.ErrCorrupt)
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
		err = kind.Refuse(OpMeet, lane.Name(), "lane", life, shm.Alive, kind.ErrPeerGone)
	}
	return err
}

// enter notes a rendezvous, so that Interrupt can end it.
func (h *Lanes) enter(m *Meeting) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.meetings[m] = struct{}{}
}

func (h *Lanes) leave(m *Meeting) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.meetings, m)
}

// allot returns a row that no living writer has, with its former lane if there was one, and keeps
// it from others until release. The user is that of the peer, with CrossUser.
func (h *Lanes) allot(user int) (row int, former *shm.Object, err error) {
	none := NoLane(OpMeet, h.Name, h.Queue)
	for row := 1; row < len(h.lanes); row++ {
		if h.Rows[row].Bell.Parked.Load()&kind.RowPoisoned != 0 {
			continue
		}
		obj, mine, most := h.reserve(row, user)
		if most {
			return 0, nil, &shm.Error{Pkg: kind.Pkg, Op: OpMeet, Name: h.Name, Field: "lanes of a user",
				Got: h.UserLanes, Err: kind.ErrLanes,
				Hint: "detach a writer of this user, or create the queue with more UserLanes"}
		}
		if !mine {
			continue
		}
		if obj == nil {
			return row, nil, nil
		}
		if err = h.vacant(obj, row); err == nil {
			return row, obj, nil
		}
		if h.release(row); kind.Starved(err) {
			none = err
		}
	}
	return 0, nil, none
}

// reserve keeps a row from others if it is nobody's. most says that the user has as many rows as it
// may have.
func (h *Lanes) reserve(row, user int) (obj *shm.Object, mine, most bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.lanes[row]
	if l.busy {
		return nil, false, false
	}
	if h.Queue.Others() && h.UserLanes > 0 && h.ofUser(user) >= h.UserLanes {
		return nil, false, true
	}
	l.busy = true
	if l.obj == nil {
		l.user = user
	}
	return l.obj, true, false
}

// ofUser counts the rows that a user has, or is about to get.
func (h *Lanes) ofUser(user int) (n int) {
	for i := range h.lanes {
		if l := &h.lanes[i]; (l.busy || l.obj != nil) && l.user == user {
			n++
		}
	}
	return n
}

// vacant is nil if a next writer can go on in a lane. It looks as that writer will: the last one
// may have written over what was checked when it came.
func (h *Lanes) vacant(obj *shm.Object, row int) error {
	if h.Queue.Others() {
		return kind.ErrLanes // it is another writer's until it is retired
	}
	life, err := obj.Life()
	if err == nil && life != shm.Dead && life != shm.Released {
		err = kind.ErrLanes
	}
	if err != nil {
		return err
	}
	fresh, err := OpenPassed(obj.FD(), obj.Name(), shm.ReadOnly)
	if err != nil {
		return err
	}
	defer fresh.Close()
	return h.Queue.LaneFits(fresh, row, h.Reader.Header().UUID, &h.Rows[row])
}

func (h *Lanes) release(row int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lanes[row].busy = false
}

// Busy is what rendezvous that are under way have: how many there are, how many rows they were
// offered, and whether time runs for one of them.
func (h *Lanes) Busy() (meetings, offered int, limited bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for m := range h.meetings {
		_, until := m.Context().Deadline()
		limited = limited || until || m.Limited()
	}
	for i := range h.lanes {
		if h.lanes[i].busy {
			offered++
		}
	}
	return len(h.meetings), offered, limited
}

// Turns are those of writers of other users.
func (h *Lanes) Turns() *Turns { return h.turns }
