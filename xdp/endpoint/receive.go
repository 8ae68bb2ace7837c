package endpoint

import (
	"cmp"
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
		parts := got[i : i+1]
		if got[i].More {
			parts = got[i : i+chain(got[i:])]
		}
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
}

// add makes a completion of a packet, or drops it. Every frame has a slot.
func (l *loans) add(parts []xdp.Received) error {
	e := l.e
	p := &e.span
	ok := e.parse(parts)
	first := min(p.n, int(parts[0].Len)-p.off) // of the payload, in the first frame
	if ok && first < 0 {
		e.stats.Malformed++ // not even the headers lie in one
		ok = false
	}
	if !ok {
		e.drop(parts)
		return nil
	}
	left := p.n - first
	p.n = first
	if left > 0 {
		p.flags |= cq.FlagMore
	}
	if !e.source.known && e.cfg.SourceErr {
		if err := l.unknown(&parts[0]); err != nil {
			e.drop(parts[1:])
			return err
		}
	} else {
		l.put(&parts[0])
		l.messages++
	}
	if len(parts) > 1 {
		l.rest(parts[1:], left)
	}
	return nil
}

// put has the next slot refer to the payload in a frame, and writes the frame's record.
func (l *loans) put(r *xdp.Received) {
	e, at := l.e, l.k
	p, slots := &e.span, l.a
	if at >= len(slots) {
		slots, at = l.b, at-len(slots)
	}
	chunk := e.geometry.Chunk(r.Off)
	rec, to := &e.record, (*[xdp.RecordBytes]byte)(e.frames[chunk:])
	rec.Sequence, rec.RxNs = l.first+uint64(l.k), l.now
	rec.PayloadOff, rec.PayloadLen = uint16(r.Off-chunk)+uint16(p.off), uint16(p.n)
	rec.FrameLen, rec.Flags = uint16(r.Len), e.tagged|p.record
	*to = e.image
	rec.Put(to[:], true)
	c := &slots[at]
	*c = e.entry
	c.Flags |= p.flags
	c.Len, c.Buf, c.Data = uint64(p.n), shm.MakeRef(e.umem, r.Off+uint64(p.off)), p.data
	e.packets[l.k].Frame = r.Frame // in front of those that are not looked at yet, or in its place
	l.k++
	l.bytes += uint64(p.n)
}

// unknown makes an error entry of a packet from somebody who is not in the address vector. There is
// room: a slot was reserved for the packet.
func (l *loans) unknown(r *xdp.Received) error {
	e, w := l.e, l.e.cfg.Receive
	if err := l.commit(); err != nil {
		e.socket.Drop(r.Frame)
		return err
	}
	rest := len(l.a) + len(l.b) - l.k - 1
	*l = loans{e: e, a: e.stranger[:], first: w.Next(), now: l.now}
	l.put(r)
	c := &l.a[0]
	c.Src = cq.Source{}
	e.failure = feed.UnknownSource(c, e.sender())
	err := w.PostError(&e.failure)
	if err != nil {
		e.socket.Drop(r.Frame)
		return err
	}
	e.socket.Loan(uint32(l.first), *r)
	e.stats.UnknownSource++
	_ = e.rx.Count(cq.FlagRecv, 1, c.Len)
	*l = loans{e: e, first: w.Next(), now: l.now}
	if rest > 0 { // the slots that are left lie behind the error entry now
		l.a, l.b, err = w.Reserve(rest)
	}
	return err
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

// parse finds the payload of a packet. Headers are left in e.flow, what follows from them in e.
func (e *Endpoint) parse(parts []xdp.Received) bool {
	frame := e.socket.Packet(parts[0])
	if len(parts) > 1 {
		frame = e.whole(parts)
	}
	sum, same, err := e.flow.Read(frame)
	if err != nil {
		e.stats.Malformed++
		return false
	}
	if !same || !e.source.valid {
		e.meet(same)
	}
	if sum == packet.ChecksumWrong && !e.cfg.WrongChecksums {
		e.stats.BadChecksum++
		return false
	}
	d, p := &e.flow.Datagram, &e.span
	p.off, p.n, p.data, p.flags = d.PayloadOff, d.PayloadLen, 0, 0
	p.record = sum.Flag(xdp.RecordChecksumOK, xdp.RecordChecksumWrong)
	if e.cfg.RemoteData {
		data, has, ok := readShim(frame[p.off : p.off+p.n])
		if !ok {
			e.stats.NoShim++
			return false
		}
		if p.off, p.n = p.off+ShimBytes, p.n-ShimBytes; has {
			p.data, p.flags = data, cq.FlagRemoteCQData
		}
	}
	return true
}

// meet finds out what packets have in common whose headers are those of the one that was read last.
// With same the one before had them too.
func (e *Endpoint) meet(same bool) {
	d := &e.flow.Datagram
	if !same {
		r := xdp.Record{Src: d.Src, Dst: d.Dst, Queue: e.queue, VLAN: d.VLAN}
		r.Put(e.image[:], false)
		e.tagged = 0
		if d.Tags > 0 {
			e.tagged = xdp.RecordVLAN
		}
		e.entry = cq.Entry{Flags: recvKind | cq.FlagFrame, Meta: cq.MetaNoContext}
		if d.Dst.Addr().IsMulticast() {
			e.entry.Flags |= cq.FlagMulticast
		}
	}
	e.resolve(d.Src)
	e.entry.Src = cq.From(e.source.addr)
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
func (e *Endpoint) resolve(from netip.AddrPort) {
	s := &e.source
	if s.valid && s.from == from {
		return
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
	back := e.back[:0]
	for i := range cs {
		if cs[i].Flags&cq.FlagFrame == 0 {
			continue
		}
		if len(back) == cap(back) {
			err = cmp.Or(err, e.takeBack(back))
			back = back[:0]
		}
		back = append(back, e.returned(cs[i].Buf, cs[i].Meta.Seq()))
	}
	err = cmp.Or(err, e.takeBack(back))
	e.refill()
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
	err := e.takeBack(append(e.back[:0], e.returned(ref, generation)))
	e.refill()
	return err
}

// returned names the frame that a reference of another process lies in.
func (e *Endpoint) returned(ref shm.Ref, generation uint32) xdp.Returned {
	r := xdp.Returned{Off: ref.Offset(), Generation: generation}
	if ref.Region() != e.umem {
		r.Off = math.MaxUint64 // a frame of a former UMEM: the frame table counts it
	}
	return r
}

func (e *Endpoint) takeBack(back []xdp.Returned) error {
	n := e.socket.Return(back...)
	e.stats.Returned += uint64(n)
	e.dirty = true // what is stale is counted too
	if n < len(back) {
		return ErrFrame
	}
	return nil
}

// refill shows the kernel the frames that came back: nobody else may look for a while.
func (e *Endpoint) refill() {
	if !e.over && e.socket.Fill(2*len(e.packets)) > 0 {
		_ = e.socket.WakeFill()
	}
}

// Reclaim takes back all frames that were lent by completions before the one with this generation:
// what a dead reader held. It returns how many.
func (e *Endpoint) Reclaim(before uint32) int {
	e.lock()
	defer e.unlock()
	n := e.socket.Reclaim(before)
	e.stats.Reclaimed += uint64(n)
	e.refill()
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
