package cq

import (
	"errors"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// unnamedWriter is a writer's side of a rendezvous, and what it got there.
type unnamedWriter struct {
	m     *place.Meeting // nil when the rendezvous is over
	w     *laneWriter
	opt   WriterOptions
	name  string
	offer place.Message
	fds   place.Passed
	// handover is what a former reader left, which the new lane is born with; nil if there was none.
	handover *handover
}

func (d *unnamedWriter) openReader() (*shm.Object, error) {
	if err := d.checkPeer(); err != nil {
		return nil, err
	}
	err := d.m.Say(place.Message{Step: place.StepAsk, Trust: uint32(d.opt.Trust)}, place.NoFDs)
	if err == nil {
		d.offer, d.fds, err = d.m.Hear(place.StepOffer)
	}
	if theirs := Trust(d.offer.Trust); err == nil && theirs != d.opt.Trust {
		err = kind.Refuse(place.OpMeet, d.name, "Trust", theirs, d.opt.Trust, ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	if d.fds[place.FDReader] < 0 {
		return nil, kind.Refuse(place.OpMeet, d.name, "descriptors", "no reader object", "one",
			ErrCorrupt)
	}
	if d.opt.Trust == CrossUser {
		d.m.Limit(meetTimeout, place.ErrSilent)
		return shm.OpenPassed(d.fds[place.FDReader], kind.ReaderFile, d.opt.MaxBytes)
	}
	return place.OpenPassed(d.fds[place.FDReader], "reader", shm.ReadOnly)
}

// checkPeer refuses a reader of a user that was not allowed.
func (d *unnamedWriter) checkPeer() (err error) {
	if d.opt.Trust != CrossUser {
		return place.CheckPeer(d.m.Conn)
	}
	d.w.peer, err = place.MeetPeer(d.m.Conn, d.opt.Allow)
	return err
}

// claimLane takes the lane that was offered, or makes one and tells the reader, and returns when
// the reader knows it.
func (d *unnamedWriter) claimLane(reader *shm.Object, rows []kind.RowWords,
	opt shape) (*shm.Object, int, error) {
	d.name = reader.Header().Name
	queue, bit := reader.Header().UUID, int(d.offer.Row)
	switch {
	case d.offer.Row == 0 || d.offer.Row >= uint32(opt.rows()):
		return nil, 0, kind.Refuse(place.OpMeet, d.name, "row", d.offer.Row, opt.MaxLanes, ErrCorrupt)
	case d.offer.Queue != queue:
		return nil, 0, kind.Refuse(place.OpMeet, d.name, "queue", queue, d.offer.Queue, ErrCorrupt)
	case opt.Wait.hasFD() != (d.fds[place.FDEvent] >= 0),
		d.fds[place.FDEvent] >= 0 && !opt.others() && !eventfd.Is(d.fds[place.FDEvent]),
		d.fds[place.FDEvent] >= 0 && opt.others() && !eventfd.IsPipe(d.fds[place.FDEvent]),
		opt.others() && (d.fds[place.FDLane] >= 0 || d.fds[place.FDBell] >= 0):
		return nil, 0, kind.Refuse(place.OpMeet, d.name, "descriptors", "something else",
			"an eventfd, or a pipe", ErrCorrupt)
	}
	obj, err := d.lane(bit, opt, queue, &rows[bit])
	if err != nil {
		return nil, 0, err
	}
	err = d.sendLane(obj, opt, queue)
	if err == nil {
		_, _, err = d.m.Hear(place.StepDone)
		if err != nil && d.handover != nil && !errors.Is(err, place.ErrRefused) && decide(d.w.peer) {
			err = nil
		}
	}
	if err != nil {
		_ = obj.Close()
		return nil, 0, err
	}
	if d.handover != nil {
		crash.At(crash.FollowTaken)
	}
	return obj, bit, nil
}

// sendLane gives the reader a lane that it does not know.
func (d *unnamedWriter) sendLane(obj *shm.Object, opt shape, queue shm.UUID) (err error) {
	fds := place.NoFDs
	switch {
	case opt.others():
		if fds[place.FDLane], err = obj.ShareFD(); err != nil {
			return err
		}
		defer shm.CloseFDs(fds[:])
	case d.fds[place.FDLane] < 0:
		fds[place.FDLane] = obj.FD()
	}
	return d.m.Say(place.Message{Step: place.StepLane, Row: d.offer.Row, Queue: queue,
		Trust: uint32(opt.Trust)}, fds)
}

// newLane makes a lane as large as the reader says, within bounds if that is another user.
func (d *unnamedWriter) newLane(bit int, opt shape, queue shm.UUID,
	row *kind.RowWords) (*shm.Object, error) {
	spec := opt.attrs().LaneSpec(kind.LaneFile(bit), bit, queue)
	seals := kind.LaneSeals
	if opt.others() {
		seals = shm.SealOthers
		// The reader's object has all that a lane has, so the bound on that speaks first. This one
		// stands for the day on which a lane has a section more.
		size, err := shm.Plan(spec)
		if err == nil && size > d.opt.MaxBytes {
			err = kind.Refuse(place.OpMeet, d.name, "lane bytes", size, d.opt.MaxBytes, shm.ErrNoSpace)
		}
		if err != nil {
			return nil, err
		}
	}
	obj, err := place.Sealed(spec, seals, func(o *shm.Object) error {
		if err := kind.InitLane(o, bit, row); err != nil || d.handover == nil {
			return err
		}
		return d.handover.fill(o, bit, opt)
	})
	if d.handover != nil {
		crash.At(crash.FollowFilled)
	}
	return obj, err
}

func (d *unnamedWriter) lane(bit int, opt shape, queue shm.UUID,
	row *kind.RowWords) (*shm.Object, error) {
	name := kind.LaneFile(bit)
	if d.fds[place.FDLane] < 0 {
		return d.newLane(bit, opt, queue, row)
	}
	obj, err := place.OpenPassed(d.fds[place.FDLane], name, shm.ReadWrite)
	if err != nil {
		return nil, err
	}
	err = obj.Claim(func() error {
		if err := opt.attrs().LaneBelongs(obj, bit, queue); err != nil {
			return err
		}
		return opt.attrs().LanePossible(obj, bit, row)
	})
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	return obj, nil
}

func (d *unnamedWriter) gone(*shm.Object) (bool, error) { return false, nil }

// openFace returns the eventfd that came with the offer, as long as the reader is that one.
func (d *unnamedWriter) openFace(_ *shm.Object, _ *kind.QueueWords, generation uint16) int {
	if generation != uint16(d.offer.Generation) || d.fds[place.FDEvent] < 0 {
		return -1
	}
	return eventfd.Dup(d.fds[place.FDEvent])
}

func (d *unnamedWriter) leave(lane *shm.Object, _ func() bool) (last bool, err error) {
	return false, lane.Release()
}

// settle closes what is not needed any more when the rendezvous is over.
func (d *unnamedWriter) settle() {
	d.m = nil
	shm.CloseFDs(d.fds[:place.FDEvent])
	d.fds[place.FDReader], d.fds[place.FDLane] = -1, -1
}

func (d *unnamedWriter) removeDir()       {}
func (d *unnamedWriter) bell() int        { return d.fds[place.FDBell] }
func (d *unnamedWriter) beside() *shm.Dir { return nil }

func (d *unnamedWriter) close() error {
	d.fds.Close()
	return nil
}
