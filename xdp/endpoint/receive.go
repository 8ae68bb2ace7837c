package endpoint

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/feed"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// recvKind are the flags of a receive completion.
const recvKind = cq.FlagRecv | cq.FlagMsg

// receive takes packets out of the receive ring, no more than can be reported.
func (e *Endpoint) receive(now int64) (int, error) {
	e.source.valid = false // the address vector may have changed
	if e.cfg.Posted {
		return e.receivePosted()
	}
	n := min(e.socket.Pending(len(e.packets)), len(e.packets))
	if n == 0 {
		return 0, nil
	}
	if e.chains {
		n = max(n, xdp.MaxChain) // packets are taken whole
	}
	a, b, err := e.cfg.Receive.Reserve(n)
	if err == nil && e.chains && len(a)+len(b) < xdp.MaxChain {
		err = cq.ErrFull
	}
	if err != nil {
		return e.noRoom(n, err)
	}
	got := e.packets[:e.socket.Receive(e.packets[:len(a)+len(b)])]
	e.touch(got)
	l := loans{e: e, a: a, b: b, first: e.cfg.Receive.Next(), now: uint64(now)}
	for i := 0; i < len(got); {
		parts := got[i : i+chain(got[i:])]
		i += len(parts)
		if err = l.add(parts); err != nil {
			e.drop(got[i:])
			break
		}
	}
	if e2 := l.commit(); err == nil {
		err = e2
	}
	return len(got), err
}

// touch loads a byte of each packet, and of its record. What is not in the cache comes for all of
// them at once then, and not for one after the other.
func (e *Endpoint) touch(got []xdp.Received) {
	t := byte(0)
	for i := range got {
		at := got[i].Off
		t += e.frames[at] + e.frames[e.geometry.Chunk(at)]
	}
	e.touched = t
}

// noRoom is a lane that takes nothing now, or nothing any more.
func (e *Endpoint) noRoom(n int, err error) (int, error) {
	switch {
	case err == cq.ErrFull:
		e.rxBlocked = true
		e.stats.RxBlocked++
		return 0, nil
	case errors.Is(err, cq.ErrOverrun):
		// The queue says so to its reader. Packets do not wait for a reader that there is none of.
		got := e.packets[:e.socket.Receive(e.packets[:n])]
		e.drop(got)
		e.stats.Overrun += uint64(len(got))
		return n, nil
	}
	return 0, err
}

func (e *Endpoint) drop(got []xdp.Received) {
	for _, r := range got {
		e.socket.Drop(r.Frame)
	}
}

// loans is a batch of frames that become completions.
type loans struct {
	e        *Endpoint
	a, b     []cq.Entry
	k        int    // slots filled
	messages int    // that these are
	first    uint64 // index of the first
	now      uint64
	bytes    uint64
	span     span // of the packet at hand
}

// add makes a completion of a packet, or drops it. Every frame has a slot.
func (l *loans) add(parts []xdp.Received) error {
	e := l.e
	p := &l.span
	ok := e.parse(parts, p)
	first := min(p.n, int(parts[0].Len)-p.off) // of the payload, in the first frame
	if ok && first < 0 {
		e.stats.Malformed++ // not even the headers lie in one
		ok = false
	}
	if !ok {
		e.drop(parts)
		return nil
	}
	src, known := e.resolve(e.flow.Datagram.Src)
	left := p.n - first
	p.n = first
	if len(parts) > 1 {
		p.flags |= cq.FlagMore
	}
	if !known && e.cfg.SourceErr {
		if err := l.unknown(&parts[0], p); err != nil {
			e.drop(parts[1:])
			return err
		}
	} else {
		l.put(&parts[0], p, src)
		l.messages++
	}
	if len(parts) > 1 {
		l.rest(parts[1:], p, src, left)
	}
	return nil
}

// put fills the next slot.
func (l *loans) put(r *xdp.Received, p *span, src cq.Addr) {
	slots, at := l.a, l.k
	if at >= len(slots) {
		slots, at = l.b, at-len(slots)
	}
	l.e.lend(&slots[at], r, p, cq.From(src), l.first+uint64(l.k), l.now)
	l.e.packets[l.k].Frame = r.Frame // in front of those that are not looked at yet, or in its place
	l.k++
	l.bytes += uint64(p.n)
}

// unknown makes an error entry of a packet from somebody who is not in the address vector. There is
// room: a slot was reserved for the packet.
func (l *loans) unknown(r *xdp.Received, p *span) error {
	e, w := l.e, l.e.cfg.Receive
	if err := l.commit(); err != nil {
		e.socket.Drop(r.Frame)
		return err
	}
	rest := len(l.a) + len(l.b) - l.k - 1
	l.a, l.b, l.k, l.messages, l.bytes = nil, nil, 0, 0, 0
	index := w.Next()
	var c cq.Entry
	e.lend(&c, r, p, cq.Source{}, index, l.now)
	e.failure = feed.UnknownSource(&c, e.sender())
	err := w.PostError(&e.failure)
	if err != nil {
		e.socket.Drop(r.Frame)
		return err
	}
	e.socket.Loan(uint32(index), *r)
	e.stats.UnknownSource++
	_ = e.rx.Count(cq.FlagRecv, 1, c.Len)
	if rest > 0 { // the slots that are left lie behind the error entry now
		if l.a, l.b, err = w.Reserve(rest); err != nil {
			return err
		}
	}
	l.first = w.Next()
	return nil
}

// commit publishes what was filled, with one store.
func (l *loans) commit() error {
	if l.k == 0 {
		return nil
	}
	e, lent := l.e, l.e.packets[:l.k]
	if err := e.cfg.Receive.Commit(l.k); err != nil {
		e.drop(lent) // nobody will ever see the completions
		return err
	}
	e.socket.Loan(uint32(l.first), lent...) // who gives one back waits for this call, or follows it
	e.stats.Received += uint64(l.messages)
	return e.rx.Count(cq.FlagRecv, l.messages, l.bytes)
}

// span is where the payload lies in the packet.
type span struct {
	off, n int
	data   uint64 // remote CQ data
	flags  cq.Flags
	record uint16 // flags of the record
}

// parse finds the payload of a packet. Headers are left in e.flow.
func (e *Endpoint) parse(parts []xdp.Received, p *span) bool {
	d := &e.flow.Datagram
	frame := e.whole(parts)
	sum, same, err := e.flow.Read(frame)
	e.recorded = e.recorded && same
	if err != nil {
		e.stats.Malformed++
		return false
	}
	if sum == packet.ChecksumWrong && !e.cfg.WrongChecksums {
		e.stats.BadChecksum++
		return false
	}
	p.off, p.n, p.data, p.flags = d.PayloadOff, d.PayloadLen, 0, 0
	p.record = sum.Flag(xdp.RecordChecksumOK, xdp.RecordChecksumWrong)
	if d.Tags > 0 {
		p.record |= xdp.RecordVLAN
	}
	if d.Dst.Addr().IsMulticast() {
		p.flags = cq.FlagMulticast
	}
	if e.cfg.RemoteData {
		data, has, ok := readShim(frame[p.off : p.off+p.n])
		if !ok {
			e.stats.NoShim++
			return false
		}
		if p.off, p.n = p.off+ShimBytes, p.n-ShimBytes; has {
			p.data, p.flags = data, p.flags|cq.FlagRemoteCQData
		}
	}
	return true
}

// lend has c, the completion with this index, refer to the payload in a frame, and writes the frame's
// record. The loan is its caller's to make.
func (e *Endpoint) lend(c *cq.Entry, r *xdp.Received, p *span, src cq.Source,
	index, now uint64,
) {
	chunk := e.geometry.Chunk(r.Off)
	in := uint16(r.Off - chunk)
	rec, to := &e.record, e.frames[chunk:][:xdp.RecordBytes]
	rec.Sequence, rec.RxNs = index, now
	rec.PayloadOff, rec.PayloadLen = in+uint16(p.off), uint16(p.n)
	rec.FrameLen, rec.Flags = uint16(r.Len), p.record
	if e.recorded {
		rec.Put(to, e.image[:])
	} else {
		d := &e.flow.Datagram
		rec.Src, rec.Dst, rec.Queue, rec.VLAN = d.Src, d.Dst, e.queue, d.VLAN
		rec.Put(to, nil)
		copy(e.image[:], to)
		e.recorded = true
	}
	// Each by itself: c is in the queue's memory, and a composite would be made elsewhere first.
	c.Context, c.Flags = 0, recvKind|cq.FlagFrame|p.flags
	c.Len, c.Buf = uint64(p.n), shm.MakeRef(e.umem, r.Off+uint64(p.off))
	c.Data, c.Tag, c.Src, c.Meta = p.data, 0, src, cq.MetaNoContext
}

// sourceCache is the sender found last: packets come in runs from one sender.
type sourceCache struct {
	from  netip.AddrPort
	addr  cq.Addr
	known bool
	valid bool
	raw   []byte
}

// resolve looks a sender up in the address vector.
func (e *Endpoint) resolve(from netip.AddrPort) (cq.Addr, bool) {
	s := &e.source
	if s.valid && s.from == from {
		return s.addr, s.known
	}
	s.from, s.addr, s.known, s.valid = from, cq.AddrNotAvail, false, true
	if e.cfg.Addresses != nil {
		s.raw = cq.AppendSockaddr(s.raw[:0], from)
		s.addr, s.known = e.cfg.Addresses.Resolve(s.raw)
		if !s.known && from.Addr().Is6() && from.Addr().IsLinkLocalUnicast() {
			// The vector may have it with the number of the interface.
			index := e.socket.Info().Index
			binary.LittleEndian.PutUint32(s.raw[len(s.raw)-4:], uint32(index))
			s.addr, s.known = e.cfg.Addresses.Resolve(s.raw)
		}
	}
	return s.addr, s.known
}

// sender is the address of the sender found last.
func (e *Endpoint) sender() []byte {
	e.source.raw = cq.AppendSockaddr(e.source.raw[:0], e.source.from)
	return e.source.raw
}

// Release gives the frames of receive completions back, and shows the kernel them with one store.
// The entries may be another process's copies: Buf and Meta are what counts. Those without
// FlagFrame are passed over. [ErrFrame] says that one names no frame of this endpoint, or one that
// was given back before; nothing happens then but that it is counted, and all others were given
// back.
func (e *Endpoint) Release(cs ...cq.Entry) (err error) {
	e.lock()
	defer e.unlock()
	starved := e.fillLeft() == 0
	for i := range cs {
		if cs[i].Flags&cq.FlagFrame == 0 {
			continue
		}
		if !e.takeBack(cs[i].Buf, cs[i].Meta.Seq()) {
			err = ErrFrame
		}
	}
	e.refill(starved)
	return err
}

// ReleaseError gives the frame of an error entry back: one with FlagFrame, of a datagram from an
// unknown source.
func (e *Endpoint) ReleaseError(c *cq.ErrorEntry) error {
	r, err := e.Record(c.Buf)
	if err != nil {
		return err
	}
	return e.endLoan(c.Buf, uint32(r.Sequence))
}

func (e *Endpoint) endLoan(ref shm.Ref, generation uint32) error {
	e.lock()
	defer e.unlock()
	starved := e.fillLeft() == 0
	ok := e.takeBack(ref, generation)
	e.refill(starved)
	if !ok {
		return ErrFrame
	}
	return nil
}

func (e *Endpoint) takeBack(ref shm.Ref, generation uint32) bool {
	off := ref.Offset()
	if ref.Region() != e.umem {
		off = math.MaxUint64 // a frame of a former UMEM: the frame table counts it
	}
	e.dirty = true // what is stale is counted too
	if !e.socket.Return(off, generation) {
		return false
	}
	e.stats.Returned++
	return true
}

// refill hands frames on as soon as there are any, if the kernel had run out of them: nobody else
// may look for a while.
func (e *Endpoint) refill(starved bool) {
	if e.over || !starved {
		return
	}
	if e.socket.Fill(2*len(e.packets)) > 0 {
		_ = e.socket.WakeFill()
	}
}

// Reclaim takes back all frames that were lent by completions before the one with this generation:
// what a dead reader held. It returns how many.
func (e *Endpoint) Reclaim(before uint32) int {
	e.lock()
	defer e.unlock()
	starved := e.fillLeft() == 0
	n := e.socket.Reclaim(before)
	e.stats.Reclaimed += uint64(n)
	e.refill(starved)
	return n
}

// Payload returns the bytes of a loaned frame in place, in this process: Buf and Len are what
// counts, so an error entry's do as well. They are not to be touched after Release, and are gone
// when the UMEM is closed. [ErrFrame] says that they are not of this endpoint's UMEM.
func (e *Endpoint) Payload(c *cq.Entry) ([]byte, error) {
	ref, n := c.Buf, c.Len
	mem := e.socket.UMEM().Region().Bytes()
	off := ref.Offset()
	if ref.Region() != e.umem || off > uint64(len(mem)) || n > uint64(len(mem))-off {
		return nil, ErrFrame
	}
	return mem[off : off+n : off+n], nil
}

// Record returns what is known about a loaned frame beside its payload: addresses, time, VLAN.
func (e *Endpoint) Record(ref shm.Ref) (xdp.Record, error) {
	u := e.socket.UMEM()
	if ref.Region() != e.umem {
		return xdp.Record{}, ErrFrame
	}
	return xdp.ReadFrame(u.Region(), u.Geometry(), ref)
}
