package xdp

import (
	"errors"
	"math"
	"net/netip"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/packet"
)

// kernelEveryNs is how often the kernel's counters are asked for: that is a system call.
const kernelEveryNs = 100e6

// round does everything that can be done without waiting. Sends come before packets: they were
// asked for earlier, and returns among the commands are what packets are received into.
func (p *Port) round(now int64) (work int, err error) {
	p.rxBlocked, p.txBlocked = false, false
	work, err = p.reap()
	if err == nil {
		var n int
		n, err = p.takeCommands()
		work += n
	}
	filled := p.core.Fill(2 * len(p.packets))
	if err == nil {
		var n int
		n, err = p.receive(now)
		work += n
	}
	if e := p.kick(filled > 0); err == nil {
		err = e
	}
	p.dirty = p.dirty || work > 0
	if p.dirty && work == 0 || now-p.statsAt >= 1e6 {
		p.publish(now)
	}
	return work, err
}

// reap posts the completions of what the kernel is done with.
func (p *Port) reap() (int, error) {
	n := p.core.Reap(p.done)
	if n == 0 {
		return 0, nil
	}
	// The credits that came with the commands are exactly the room that this needs.
	p.tx.ReturnCredits(n)
	a, b, err := p.tx.Reserve(n)
	if err == nil && len(a)+len(b) != n {
		err = cq.ErrFull // somebody else posts to the port's lane
	}
	if err != nil {
		p.stats.Abandoned += uint64(n)
		return n, err
	}
	for i := range a {
		a[i] = sent(&p.done[i])
	}
	for i := range b {
		b[i] = sent(&p.done[len(a)+i])
	}
	p.stats.Completed += uint64(n)
	return n, p.tx.Commit(n)
}

func sent(s *Sent) cq.Entry {
	return cq.Entry{Context: s.Context, Flags: sendFlags, Src: cq.AddrNotAvail}
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
		p.txBlocked = true
		p.stats.TxBlocked++
	}
	return k, err
}

// peek gets commands: no more than can be answered, so that Close need not leave anybody waiting,
// but one in any case, since a return wants no answer.
func (p *Port) peek() (taken int, err error) {
	if p.room < p.txBatch {
		p.room = p.tx.Free()
	}
	es, err := p.q.Peek(max(1, min(p.txBatch, p.room)))
	switch {
	case err == nil:
		p.pending, p.redelivered = es, p.q.Redelivered()
		return 0, nil
	case err == cq.ErrAgain:
		return 0, nil
	case err == cq.ErrAvail:
		// An error entry is no command, whoever posted it.
		p.stats.Refused++
		return 1, p.q.ReadErr(&p.failure)
	}
	var lane *cq.LaneError
	if errors.As(err, &lane) { // its writer is given up, the others go on
		p.stats.LanesLost++
		return 1, nil
	}
	return 0, err
}

// do carries out one command. It reports false if the command has to wait.
func (p *Port) do(e *cq.Entry) (bool, error) {
	if e.Flags == returnFlags || e.Flags == reclaimFlags {
		p.takeBack(e)
		return true, nil
	}
	if err := p.tx.Credit(1); err != nil {
		if err == cq.ErrFull {
			return false, nil
		}
		return false, err
	}
	why, done := p.send(e)
	switch {
	case !done:
		p.tx.ReturnCredits(1)
		return false, nil
	case why != 0:
		p.stats.Refused++
		p.room--
		return true, p.fail(e.Context, why)
	}
	p.stats.Accepted++
	p.room--
	return true, nil
}

// takeBack ends the loan of a frame, or of all that a dead reader may have had. Nothing of what the
// command says is believed; what does not name a loan of this UMEM is counted by the frame table.
func (p *Port) takeBack(e *cq.Entry) {
	off := e.Buf.Offset()
	switch mine := e.Buf.Region() == p.umem && e.Data <= math.MaxUint32; {
	case !mine:
		off = math.MaxUint64 // a frame of a former UMEM, or none at all
	case e.Flags == reclaimFlags:
		if e.Len == uint64(p.rx.Lane()) {
			p.stats.Reclaimed += uint64(p.core.Reclaim(uint32(e.Data)))
		}
		return
	}
	if p.core.Return(off, uint32(e.Data)) {
		p.stats.Returned++
	}
}

// send builds a packet from a command. It reports false if there is no frame to build it in, and
// otherwise why the command is refused, or 0. A credit is held.
func (p *Port) send(e *cq.Entry) (why cq.Errno, done bool) {
	switch {
	case e.Flags != sendFlags:
		return cq.EBadFlags, true
	case p.redelivered:
		// The process before this one may have sent it, or not.
		return cq.Errno(syscall.ECANCELED), true
	case uint64(e.Src) >= uint64(len(p.peers)):
		return cq.Errno(syscall.EINVAL), true
	case e.Len > p.maxPayload:
		return cq.Errno(syscall.EMSGSIZE), true
	}
	region := (*p.regions.Load())[e.Buf.Region()]
	if region == nil {
		return cq.ENoKey, true
	}
	frame, buf, ok := p.core.Acquire()
	if !ok {
		return 0, false
	}
	loan, err := region.View(e.Buf, int(e.Len))
	if err != nil {
		p.core.Abandon(frame)
		if errors.Is(err, shm.ErrCorrupt) {
			return cq.Errno(syscall.EINVAL), true // a range outside of the region
		}
		return cq.ENoKey, true // the region is being closed
	}
	n, err := p.peers[e.Src].Build(buf, loan.Bytes())
	loan.Release()
	if err == nil {
		err = p.core.Post(frame, n, e.Context)
	}
	if err != nil {
		p.core.Abandon(frame)
		return cq.Errno(syscall.EMSGSIZE), true
	}
	return 0, true
}

// fail answers a send with an error. A credit is held.
func (p *Port) fail(context uint64, why cq.Errno) error {
	p.failure = cq.ErrorEntry{Context: context, Flags: sendFlags, Src: cq.AddrNotAvail, Err: why,
		ProvErrno: int32(why)}
	return p.tx.PostErrorCredited(&p.failure)
}

// receive posts completions of packets, no more than there is room for.
func (p *Port) receive(now int64) (int, error) {
	n := min(p.core.Pending(len(p.packets)), len(p.packets))
	if n == 0 {
		return 0, nil
	}
	a, b, err := p.rx.Reserve(n)
	if err == cq.ErrFull {
		p.rxBlocked = true
		p.stats.RxBlocked++
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n = len(a) + len(b)
	next := p.rx.Next()
	got := p.packets[:p.core.Receive(p.packets[:n])]
	k := 0
	for i := range got {
		slot := b
		at := k - len(a)
		if k < len(a) {
			slot, at = a, k
		}
		if p.deliver(&got[i], next+uint64(k), uint64(now), &slot[at]) {
			got[k] = got[i]
			k++
		}
	}
	if k == 0 {
		return n, nil
	}
	if err := p.rx.Commit(k); err != nil {
		for i, r := range got[:k] { // nobody will ever see them
			p.core.Return(r.Off, uint32(next)+uint32(i))
		}
		return n, err
	}
	p.stats.Received += uint64(k)
	return n, nil
}

// deliver turns one packet into the completion with that index, or drops it.
func (p *Port) deliver(r *Received, index, now uint64, slot *cq.Entry) bool {
	d := &p.datagram
	if err := packet.Parse(p.core.Packet(*r), d); err != nil {
		p.stats.Malformed++
		p.core.Drop(r.Frame)
		return false
	}
	rec := Record{Sequence: index, RxNs: now, Src: d.Src, Dst: d.Dst,
		Queue: p.queue, VLAN: d.VLAN, PayloadLen: uint16(d.PayloadLen),
		PayloadOff: uint16(r.Off - p.core.base(r.Frame) + uint64(d.PayloadOff)),
		FrameLen:   uint16(r.Len)}
	if d.Tags > 0 {
		rec.Flags |= RecordVLAN
	}
	rec.Put(p.core.Headroom(r.Frame))
	p.core.Loan(r.Frame, uint32(index))
	*slot = cq.Entry{Flags: cq.FlagRecv | cq.FlagMsg | cq.FlagFrame, Len: uint64(d.PayloadLen),
		Buf: shm.MakeRef(p.umem, r.Off+uint64(d.PayloadOff)), Src: p.addressOf(d.Src),
		Meta: cq.MetaNoContext}
	return true
}

// addressOf looks a sender up in the address table. Packets come in runs from one sender.
func (p *Port) addressOf(src netip.AddrPort) cq.Addr {
	if src == p.lastSrc {
		return p.lastAddr
	}
	a, known := p.known[src]
	if !known {
		a = cq.AddrNotAvail
	}
	p.lastSrc, p.lastAddr = src, a
	return a
}

// kick shows the kernel what is new. A link that is down is not an error: packets wait for it.
func (p *Port) kick(filled bool) error {
	var err error
	p.core.Flush()
	if p.core.Unsent() > 0 {
		_, err = p.dev.Kick()
	}
	if filled && err == nil {
		err = p.dev.WakeFill()
	}
	return p.linkState(err)
}

func (p *Port) linkState(err error) error {
	if errors.Is(err, ErrLinkDown) {
		p.stats.LinkDown++
		return nil
	}
	return err
}
