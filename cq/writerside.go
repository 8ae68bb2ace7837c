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
	m     *meeting // nil when the rendezvous is over
	w     *laneWriter
	opt   WriterOptions
	name  string
	offer message
	fds   passed
	// handover is what a former reader left, which the new lane is born with; nil if there was none.
	handover *handover
}

func (d *unnamedWriter) openReader() (*shm.Object, error) {
	if err := d.checkPeer(); err != nil {
		return nil, err
	}
	err := d.m.send(message{step: stepAsk, trust: d.opt.Trust}, noFDs)
	if err == nil {
		d.offer, d.fds, err = d.m.receive(stepOffer)
	}
	if err == nil && d.offer.trust != d.opt.Trust {
		err = kind.Refuse(opMeet, d.name, "Trust", d.offer.trust, d.opt.Trust, ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	if d.fds[fdReader] < 0 {
		return nil, kind.Refuse(opMeet, d.name, "descriptors", "no reader object", "one", ErrCorrupt)
	}
	if d.opt.Trust == CrossUser {
		d.m.Limit(meetTimeout, errSilent)
		return shm.OpenPassed(d.fds[fdReader], kind.ReaderFile, d.opt.MaxBytes)
	}
	return place.OpenPassed(d.fds[fdReader], "reader", shm.ReadOnly)
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
	queue, bit := reader.Header().UUID, int(d.offer.row)
	switch {
	case d.offer.row == 0 || d.offer.row >= uint32(opt.rows()):
		return nil, 0, kind.Refuse(opMeet, d.name, "row", d.offer.row, opt.MaxLanes, ErrCorrupt)
	case d.offer.queue != queue:
		return nil, 0, kind.Refuse(opMeet, d.name, "queue", queue, d.offer.queue, ErrCorrupt)
	case opt.Wait.hasFD() != (d.fds[fdEvent] >= 0),
		d.fds[fdEvent] >= 0 && !opt.others() && !eventfd.Is(d.fds[fdEvent]),
		d.fds[fdEvent] >= 0 && opt.others() && !eventfd.IsPipe(d.fds[fdEvent]),
		opt.others() && (d.fds[fdLane] >= 0 || d.fds[fdBell] >= 0):
		return nil, 0, kind.Refuse(opMeet, d.name, "descriptors", "something else",
			"an eventfd, or a pipe", ErrCorrupt)
	}
	obj, err := d.lane(bit, opt, queue, &rows[bit])
	if err != nil {
		return nil, 0, err
	}
	err = d.sendLane(obj, opt, queue)
	if err == nil {
		_, _, err = d.m.receive(stepDone)
		if err != nil && d.handover != nil && !errors.Is(err, errPeerRefused) && decide(d.w.peer) {
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
	fds := noFDs
	switch {
	case opt.others():
		if fds[fdLane], err = obj.ShareFD(); err != nil {
			return err
		}
		defer shm.CloseFDs(fds[:])
	case d.fds[fdLane] < 0:
		fds[fdLane] = obj.FD()
	}
	return d.m.send(message{step: stepLane, row: d.offer.row, queue: queue, trust: opt.Trust}, fds)
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
			err = kind.Refuse(opMeet, d.name, "lane bytes", size, d.opt.MaxBytes, shm.ErrNoSpace)
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
	if d.fds[fdLane] < 0 {
		return d.newLane(bit, opt, queue, row)
	}
	obj, err := place.OpenPassed(d.fds[fdLane], name, shm.ReadWrite)
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
	if generation != uint16(d.offer.generation) || d.fds[fdEvent] < 0 {
		return -1
	}
	return eventfd.Dup(d.fds[fdEvent])
}

func (d *unnamedWriter) leave(lane *shm.Object, _ func() bool) (last bool, err error) {
	return false, lane.Release()
}

// settle closes what is not needed any more when the rendezvous is over.
func (d *unnamedWriter) settle() {
	d.m = nil
	shm.CloseFDs(d.fds[:fdEvent])
	d.fds[fdReader], d.fds[fdLane] = -1, -1
}

func (d *unnamedWriter) removeDir()       {}
func (d *unnamedWriter) bell() int        { return d.fds[fdBell] }
func (d *unnamedWriter) beside() *shm.Dir { return nil }

func (d *unnamedWriter) close() error {
	d.fds.close()
	return nil
}
