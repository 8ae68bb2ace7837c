package port

import (
	"errors"
	"math"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

// round does commands. They come before packets: they were asked for earlier, and returns among
// them are what packets are received into.
func (p *Port) round(now int64) (work int, err error) {
	if err := p.usable(); err != nil {
		return 0, err
	}
	p.blocked = false
	work, err = p.takeCommands()
	p.endpoint.Flush()
	p.dirty = p.dirty || work > 0 || p.blocked
	if p.dirty && work == 0 || now-p.statsAt >= 1e6 {
		p.publish(now)
	}
	return work, err
}

// takeCommands does as many commands as there is room for, in their order.
func (p *Port) takeCommands() (int, error) {
	if len(p.pending) == 0 {
		if taken, err := p.peek(); len(p.pending) == 0 || err != nil {
			return taken, err
		}
	}
	k := 0
	var err error
	for k < len(p.pending) {
		p.command = p.pending[k] // once: the application could change it while we look
		var done bool
		if done, err = p.do(&p.command); !done {
			break
		}
		k++
	}
	if k > 0 {
		p.pending = p.pending[k:]
		if e := p.q.Release(k); err == nil {
			err = e
		}
	}
	if len(p.pending) > 0 && err == nil {
		p.blocked = true
		p.stats.TxBlocked++
	}
	return k, err
}

// peek gets commands: no more than can be answered, so that Close need not leave anybody waiting,
// but one in any case, since a return wants no answer.
func (p *Port) peek() (taken int, err error) {
	if p.room < p.batch {
		p.room = p.tx.Free()
	}
	es, err := p.q.Peek(max(1, min(p.batch, p.room)))
	switch {
	case err == nil:
		p.took(es, p.q.Redelivered())
		return 0, nil
	case err == cq.ErrWouldBlock:
		return 0, nil
	case err == cq.ErrAvail:
		// An error entry is no command, whoever posted it.
		p.stats.BadCommands++
		return 1, p.q.ReadErr(&p.failure)
	}
	if p.lost(err) { // its writer is given up, the others go on
		return 1, nil
	}
	return 0, err
}

// took notes what is to be done. What comes again is the port's own copy, marked, which is the one
// flag that is not the command's.
func (p *Port) took(es []cq.Entry, redelivered bool) {
	p.pending, p.redelivered = es, redelivered
	if redelivered {
		for i := range es {
			es[i].Flags &^= cq.FlagRedelivered
		}
	}
}

// lost counts a lane whose writer broke it.
func (p *Port) lost(err error) bool {
	var lane *cq.LaneError
	if !errors.As(err, &lane) {
		return false
	}
	p.stats.LanesLost++
	return true
}

// do carries out one command. It reports false if the command has to wait.
func (p *Port) do(e *cq.Entry) (done bool, err error) {
	if e.Flags == returnFlags || e.Flags == reclaimFlags {
		p.takeBack(e)
		return true, nil
	}
	why := p.check(e)
	if why == 0 {
		if why, done, err = p.send(e); why == 0 {
			if done {
				p.room--
			}
			return done, err
		}
	}
	if err := p.fail(e.Context, why); err != nil {
		if err == cq.ErrFull {
			err = nil
		}
		return false, err
	}
	p.stats.BadCommands++
	p.room--
	return true, nil
}

// takeBack ends the loan of a frame, or of all that a dead reader may have had. Nothing of what the
// command says is believed; what does not name a loan of this UMEM is counted by the frame table.
func (p *Port) takeBack(e *cq.Entry) {
	ref := e.Buf
	mine := ref.Region() == p.endpoint.Socket().UMEM().Region().ID() && e.Data <= math.MaxUint32
	if mine && e.Flags == reclaimFlags {
		if e.Len == uint64(p.rx.Lane()) {
			p.endpoint.Reclaim(uint32(e.Data))
		}
		return
	}
	if !mine {
		ref = 0 // in no region: a frame of a former UMEM, or none at all
	}
	_ = p.endpoint.ReleaseRef(ref, uint32(e.Data))
}

// check says why a command is no send that can be tried, or 0.
func (p *Port) check(e *cq.Entry) cq.Errno {
	switch {
	case e.Flags != sendFlags:
		return cq.EBadFlags
	case p.redelivered:
		// The process before this one may have sent it, or not.
		return cq.Errno(syscall.ECANCELED)
	case e.Len > uint64(p.endpoint.MaxPayload()):
		return cq.Errno(syscall.EMSGSIZE)
	}
	return 0
}

// send posts what a command says. It reports false if that has to wait, and otherwise why the
// command is refused, or 0.
func (p *Port) send(e *cq.Entry) (why cq.Errno, done bool, err error) {
	region := (*p.regions.Load())[e.Buf.Region()]
	if region == nil {
		return cq.ENoKey, true, nil
	}
	loan, err := region.View(e.Buf, int(e.Len))
	if err != nil {
		if errors.Is(err, shm.ErrCorrupt) {
			return cq.Errno(syscall.EINVAL), true, nil // a range outside of the region
		}
		return cq.ENoKey, true, nil // the region is being closed
	}
	p.message = endpoint.Msg{Buf: loan.Bytes(), To: e.Src.Addr(), Context: e.Context, Flags: p.flags}
	err = p.endpoint.SendMsg(&p.message)
	p.message.Buf = nil
	loan.Release()
	switch {
	case err == nil:
		return 0, true, nil
	case errors.Is(err, cq.ErrFull), errors.Is(err, endpoint.ErrNoFrame),
		errors.Is(err, endpoint.ErrResolving), errors.Is(err, xdp.ErrLinkDown):
		return 0, false, nil
	case errors.Is(err, endpoint.ErrAddress):
		return cq.Errno(syscall.EINVAL), true, nil
	case errors.Is(err, endpoint.ErrTooBig):
		return cq.Errno(syscall.EMSGSIZE), true, nil
	}
	return 0, false, err
}

// fail answers a send with an error. What was promised to the endpoint's completions is kept.
func (p *Port) fail(context uint64, why cq.Errno) error {
	p.failure = cq.ErrorEntry{Context: context, Flags: sendFlags, Err: why,
		ProvErrno: int32(why)}
	return p.tx.PostError(&p.failure)
}
