package endpoint

import "github.com/shmring/shmring/cq"

// higherLevels wait for more than that the payload can be used again.
const higherLevels = levelFlags &^ cq.FlagInjectComplete

// unkept are levels that nobody here can know to be reached: that would take an answer.
const unkept = cq.FlagDeliveryComplete | cq.FlagMatchComplete | cq.FlagCommitComplete

// allowedFlags judges flags that are not of the plainest kind.
func (e *Endpoint) allowedFlags(m *Msg, op cq.Flags) error {
	switch {
	case op&unkept != 0:
		return ErrNotSupported
	case op&^(postFlags|cq.FlagInjectCall) != 0:
		return ErrFlags
	case op&cq.FlagRemoteCQData != 0 && !e.cfg.RemoteData:
		return ErrNotSupported
	case len(m.Iov) > MaxPieces:
		return ErrPieces
	case op&cq.FlagFence != 0:
		return e.fence()
	}
	return nil
}

// fence holds a post back until all that was posted before it has reached the highest level that
// there is. What is posted after it cannot overtake it, since it is not in the ring before.
func (e *Endpoint) fence() error {
	if e.sending > 0 {
		e.push()
		if _, err := e.reap(); err != nil {
			return err
		}
	}
	if e.sending > 0 {
		return ErrFenced
	}
	return nil
}

// completeEarly reports a send whose payload was copied (FI_INJECT_COMPLETE). Its frame is still
// with the kernel, whose answer is then no news.
func (e *Endpoint) completeEarly(o *sendOp) {
	if e.tx == nil || !e.tx.Wants(o.flags) {
		return
	}
	err := e.tx.Complete(&cq.Entry{Context: o.context, Flags: sendKind, Len: uint64(o.bytes)}, o.flags)
	o.silent = true
	if err != nil {
		e.stats.Abandoned++
		return
	}
	e.stats.Completed++
}
