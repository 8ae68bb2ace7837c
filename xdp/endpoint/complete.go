package endpoint

import (
	"errors"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/xdp"
)

// push makes the kernel send what was posted, and looks at once what it is done with: in copy mode
// that is all of it, and whoever reads the queue next finds the completion.
func (e *Endpoint) push() {
	e.round++
	if e.posted == 0 || e.over {
		return
	}
	if err := e.kick(); err != nil {
		e.broke(err)
		return
	}
	if _, err := e.reap(); err != nil {
		e.stats.Abandoned++
	}
}

// kick shows the kernel what is new. A link that is down is not an error: packets wait for it.
func (e *Endpoint) kick() error {
	posted := e.posted
	e.posted = 0
	e.socket.Flush()
	unsent := e.socket.Unsent()
	if unsent == 0 {
		return nil
	}
	dropped := e.socket.SyscallStats().SendDropped
	_, err := e.socket.Kick()
	if posted == 1 && unsent == 1 && e.socket.SyscallStats().SendDropped == dropped+1 {
		// The device refused a packet, and there was only this one. Of several nobody knows which.
		e.ops[e.lastSent].refused = true
	}
	return e.linkState(err)
}

func (e *Endpoint) linkState(err error) error {
	if errors.Is(err, xdp.ErrLinkDown) {
		e.stats.LinkDown++
		return nil
	}
	return err
}

// broke ends an endpoint whose device failed. Everything that was accepted is answered.
func (e *Endpoint) broke(err error) {
	if e.over {
		return
	}
	_ = e.end(err)
	e.tellGone()
}

// reap reports what the kernel is done with.
func (e *Endpoint) reap() (work int, err error) {
	for {
		n := e.socket.Reap(e.done)
		if n == 0 {
			return work, err
		}
		work += n
		if e2 := e.finish(e.done[:n]); e2 != nil && err == nil {
			err = e2
		}
		if n < len(e.done) {
			return work, err
		}
	}
}

// finish posts the completions of sends with one store, and counts.
func (e *Endpoint) finish(done []xdp.Sent) error {
	e.sending -= len(done)
	if e.tx == nil {
		return nil
	}
	wanted, failed, counted := 0, 0, 0
	bytes := uint64(0)
	for i := range done {
		switch o := &e.ops[done[i].Frame]; {
		case o.silent:
		case o.refused:
			failed++
		default:
			counted++
			bytes += uint64(o.bytes)
			if e.tx.Wants(o.flags) {
				wanted++
			}
		}
	}
	err := e.tx.Count(cq.FlagSend, counted, bytes)
	if e2 := e.complete(done, wanted); e2 != nil {
		err = e2
	}
	if failed > 0 {
		e.fail(done, errRefused)
	}
	return err
}

// complete posts one completion each for the wanted ones of done.
func (e *Endpoint) complete(done []xdp.Sent, wanted int) error {
	i, credited := 0, wanted
	for wanted > 0 {
		a, b, err := e.tx.Slots(wanted, credited)
		credited = 0
		if err != nil {
			e.stats.Abandoned += uint64(wanted)
			return err
		}
		n := len(a) + len(b)
		for k := 0; k < n; i++ {
			o := &e.ops[done[i].Frame]
			if o.silent || o.refused || !e.tx.Wants(o.flags) {
				continue
			}
			s := cq.Entry{Context: o.context, Flags: sendKind, Len: uint64(o.bytes)}
			if k < len(a) {
				a[k] = s
			} else {
				b[k-len(a)] = s
			}
			k++
		}
		if err := e.cfg.Transmit.Commit(n); err != nil {
			e.stats.Abandoned += uint64(wanted)
			return err
		}
		e.stats.Completed += uint64(n)
		wanted -= n
	}
	return nil
}

// fail posts an error entry for each of done that the device refused.
func (e *Endpoint) fail(done []xdp.Sent, why cq.Errno) {
	for i := range done {
		if o := &e.ops[done[i].Frame]; o.refused && !o.silent {
			e.stats.Refused++
			e.failSend(o, why)
		}
	}
}

func (e *Endpoint) failSend(o *sendOp, why cq.Errno) {
	e.failure = cq.ErrorEntry{Context: o.context, Flags: sendKind, Len: 0,
		Err: why, ProvErrno: int32(why)}
	if e.tx.Fail(&e.failure, o.flags) != nil {
		e.stats.Abandoned++
	}
}

// cancelSends answers the sends that were under way when the socket was closed.
func (e *Endpoint) cancelSends() {
	e.socket.Forfeit(func(frame uint64) {
		o := &e.ops[frame]
		if e.tx == nil || o.silent {
			return
		}
		e.stats.Cancelled++
		e.failSend(o, errCanceled)
	})
	e.sending = 0
}
