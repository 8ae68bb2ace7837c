package place

import (
	"context"
	"errors"
	"net"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// Joining is a writer's side of a rendezvous, and what it got there.
type Joining struct {
	JoinOptions
	Peer *Peer // the reader, of another user

	m     *Meeting // nil when the rendezvous is over
	name  string
	offer Message
	fds   Passed
}

// JoinOptions say whom a writer trusts, as cq.WriterOptions do.
type JoinOptions struct {
	Trust    uint32
	Allow    *shm.AllowList
	MaxBytes uint64
	// Fill gives a new lane what a former reader left, before anybody else can see it; nil if there
	// was none.
	Fill func(lane *shm.Object, row int, q kind.Queue) error
}

// Join begins; Settle must follow.
func Join(ctx context.Context, conn *net.UnixConn, o JoinOptions) *Joining {
	return &Joining{JoinOptions: o, m: Meet(ctx, conn, StepAsk), fds: NoFDs}
}

// sameTrust refuses a peer that trusts otherwise.
func sameTrust(name string, q kind.Queue, theirs uint32) error {
	if uint64(theirs) == q.Trust {
		return nil
	}
	word := func(t uint64) any {
		if t > kind.CrossUser {
			return t
		}
		return [...]string{"user", "others"}[t]
	}
	return kind.Refuse(OpMeet, name, "Trust", word(uint64(theirs)), word(q.Trust), kind.ErrInvalid)
}

// OpenReader opens the queue's reader object.
func (d *Joining) OpenReader() (*shm.Object, error) {
	if err := d.checkPeer(); err != nil {
		return nil, err
	}
	err := d.m.Say(Message{Step: StepAsk, Trust: d.Trust}, NoFDs)
	if err == nil {
		d.offer, d.fds, err = d.m.Hear(StepOffer)
	}
	if err == nil {
		err = sameTrust(d.name, kind.Queue{Trust: uint64(d.Trust)}, d.offer.Trust)
	}
	if err == nil && d.fds[FDReader] < 0 {
		err = kind.Refuse(OpMeet, d.name, "descriptors", "no reader object", "one", kind.ErrCorrupt)
	}
	if err != nil {
		return nil, err
	}
	if d.Trust == kind.CrossUser {
		d.m.Limit(MeetTimeout, ErrSilent)
		return shm.OpenPassed(d.fds[FDReader], kind.ReaderFile, d.MaxBytes)
	}
	return OpenPassed(d.fds[FDReader], "reader", shm.ReadOnly)
}

// checkPeer refuses a reader of a user that was not allowed.
func (d *Joining) checkPeer() (err error) {
	if d.Trust != kind.CrossUser {
		return CheckPeer(d.m.Conn)
	}
	d.Peer, err = MeetPeer(d.m.Conn, d.Allow)
	return err
}

// ClaimLane takes the lane that was offered, or makes one and tells the reader, and returns when
// the reader knows it.
func (d *Joining) ClaimLane(reader *shm.Object, rows []kind.RowWords,
	q kind.Queue) (*shm.Object, int, error) {
	d.name = reader.Header().Name
	queue, row, event := reader.Header().UUID, int(d.offer.Row), d.fds[FDEvent]
	switch {
	case d.offer.Row == 0 || d.offer.Row >= uint32(q.Rows):
		return nil, 0, kind.Refuse(OpMeet, d.name, "row", d.offer.Row, q.Rows-1, kind.ErrCorrupt)
	case d.offer.Queue != queue:
		return nil, 0, kind.Refuse(OpMeet, d.name, "queue", queue, d.offer.Queue, kind.ErrCorrupt)
	case q.HasFD() != (event >= 0),
		event >= 0 && !q.Others() && !eventfd.Is(event),
		event >= 0 && q.Others() && !eventfd.IsPipe(event),
		q.Others() && (d.fds[FDLane] >= 0 || d.fds[FDBell] >= 0):
		return nil, 0, kind.Refuse(OpMeet, d.name, "descriptors", "something else",
			"an eventfd, or a pipe", kind.ErrCorrupt)
	}
	obj, err := d.lane(row, q, queue, &rows[row])
	if err != nil {
		return nil, 0, err
	}
	err = d.sendLane(obj, q, queue)
	if err == nil {
		_, _, err = d.m.Hear(StepDone)
		if err != nil && d.Peer != nil && !errors.Is(err, ErrRefused) && Decide(d.Peer) {
			err = nil // else it would keep a row for us that we do not know to be ours
		}
	}
	if err != nil {
		_ = obj.Close()
		return nil, 0, err
	}
	if d.Fill != nil {
		crash.At(crash.FollowTaken)
	}
	return obj, row, nil
}

// sendLane gives the reader a lane that it does not know.
func (d *Joining) sendLane(obj *shm.Object, q kind.Queue, queue shm.UUID) (err error) {
	fds := NoFDs
	switch {
	case q.Others():
		if fds[FDLane], err = obj.ShareFD(); err != nil {
			return err
		}
		defer shm.CloseFDs(fds[:])
	case d.fds[FDLane] < 0:
		fds[FDLane] = obj.FD()
	}
	return d.m.Say(Message{Step: StepLane, Row: d.offer.Row, Queue: queue, Trust: d.Trust}, fds)
}

// lane claims the lane that came with the offer, or makes one.
func (d *Joining) lane(row int, q kind.Queue, queue shm.UUID,
	words *kind.RowWords) (*shm.Object, error) {
	if d.fds[FDLane] < 0 {
		return d.newLane(row, q, queue, words)
	}
	obj, err := OpenPassed(d.fds[FDLane], kind.LaneFile(row), shm.ReadWrite)
	if err != nil {
		return nil, err
	}
	if err = obj.Claim(func() error { return q.LaneFits(obj, row, queue, words) }); err != nil {
		_ = obj.Close()
		return nil, err
	}
	return obj, nil
}

// newLane makes a lane as large as the reader says, within bounds if that is another user.
func (d *Joining) newLane(row int, q kind.Queue, queue shm.UUID,
	words *kind.RowWords) (*shm.Object, error) {
	spec := q.LaneSpec(kind.LaneFile(row), row, queue)
	seals := kind.LaneSeals
	if q.Others() {
		seals = shm.SealOthers
		// The reader's object has all that a lane has, so the bound on that speaks first. This one
		// stands for the day on which a lane has a section more.
		size, err := shm.Plan(spec)
		if err == nil && size > d.MaxBytes {
			err = kind.Refuse(OpMeet, d.name, "lane bytes", size, d.MaxBytes, shm.ErrNoSpace)
		}
		if err != nil {
			return nil, err
		}
	}
	obj, err := Sealed(spec, seals, func(o *shm.Object) error {
		if err := kind.InitLane(o, row, words); err != nil || d.Fill == nil {
			return err
		}
		return d.Fill(o, row, q)
	})
	if d.Fill != nil {
		crash.At(crash.FollowFilled)
	}
	return obj, err
}

// Decide ends a rendezvous that broke while the reader's last message was due, and tells whether
// that came. If it had not, the reader cannot send it any more, and it goes by whether it could. It
// is the peer's own descriptor that is asked: the connection may be closed already, by whoever gave
// it to us.
func Decide(reader *Peer) (taken bool) {
	var buf [MessageBytes]byte
	n, err := reader.Mute(buf[:], lastWord)
	return err == nil && lastWord(buf[:n])
}

// lastWord tells the message by which a reader takes a lane.
func lastWord(b []byte) bool {
	if Rendezvous.Check(b, 0) != nil || Rendezvous.Expect(b, StepDone) != nil {
		return false
	}
	_, err := DecodeMessage(b)
	return err == nil
}

// Settle ends the rendezvous, tells the reader of an error, and closes what is not needed any more.
func (d *Joining) Settle(err error) {
	d.m.Finish(err)
	d.m = nil
	shm.CloseFDs(d.fds[:FDEvent])
	d.fds[FDReader], d.fds[FDLane] = -1, -1
}

// Gone: nobody removes a queue without a name.
func (d *Joining) Gone(*shm.Object) (bool, error) { return false, nil }

// OpenFace returns the descriptor that came with the offer, as long as the reader is that one. That
// has no successor, so what cannot be duplicated is given away.
func (d *Joining) OpenFace(_ *shm.Object, _ *kind.QueueWords, generation uint16) (int, error) {
	if generation != uint16(d.offer.Generation) || d.fds[FDEvent] < 0 {
		return -1, kind.ErrPeerGone
	}
	fd := eventfd.Dup(d.fds[FDEvent])
	if fd < 0 {
		fd, d.fds[FDEvent] = d.fds[FDEvent], -1
	}
	return fd, nil
}

// Leave gives the lane back.
func (d *Joining) Leave(lane *shm.Object, _ func() bool) (last bool, err error) {
	return false, lane.Release()
}

// Bell returns the descriptor of the bell that came.
func (d *Joining) Bell() (*shm.Dir, int) { return nil, d.fds[FDBell] }

// RemoveDir has nothing to remove.
func (d *Joining) RemoveDir() {}

// Close closes what came.
func (d *Joining) Close() error {
	d.fds.Close()
	return nil
}
