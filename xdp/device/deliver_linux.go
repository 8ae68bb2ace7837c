package device

import (
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/xdp"
)

// deliver hands the packets of one batch that are for this application to it, as copies in its own
// memory, or in place. What finds no frame or no room is dropped here and counted: it must not wait
// for the application, since other ones would wait with it.
func (a *app) deliver(en *engine, q *queue) {
	received := a.received
	defer func() {
		n := a.received - received
		en.stats.Delivered += n
		en.stats.Dropped += uint64(len(a.batch)) - n
		a.batch = a.batch[:0]
	}()
	a.dirty = true
	want := min(len(a.batch), a.pool.limit-a.pool.out)
	a.noFrame += uint64(len(a.batch) - want)
	if want == 0 {
		return
	}
	s1, s2, err := a.rx.Reserve(want)
	if err != nil {
		if err != cq.ErrFull {
			a.dead = err
		}
		a.noRoom += uint64(want)
		return
	}
	n := len(s1) + len(s2)
	a.noRoom += uint64(want - n)
	next := a.rx.Next()
	for i, at := range a.batch[:n] {
		slot := s1
		k := i
		if i >= len(s1) {
			slot, k = s2, i-len(s1)
		}
		a.put(q, at, next+uint64(i), uint64(en.now), &slot[k])
	}
	crash.At(crash.DevCopied)
	if err := a.rx.Commit(n); err != nil {
		a.dead = err
		return
	}
	crash.At(crash.DevPublished)
	a.received += uint64(n)
}

// put makes one packet of the batch the completion with that index.
func (a *app) put(q *queue, at int32, index, now uint64, slot *cq.Entry) {
	d := &q.parsed
	from := q.sock.Packet(q.packets[at])
	if packet.Parse(from, d) != nil {
		d.PayloadLen = 0 // was parsed a moment ago, and only the kernel writes there
	}
	mem := a.umem.Region().Bytes()
	var chunk, start uint64
	n := len(from)
	if a.inPlace {
		chunk, start = a.lend(&q.packets[at], uint32(index))
	} else {
		frame, _ := a.pool.loan(uint32(index)) // there are as many as were reserved
		chunk = uint64(frame) * uint64(a.geo.ChunkBytes)
		start = uint64(a.geo.HeadroomBytes) + frameGapBytes
		n = copy(mem[chunk+start:chunk+uint64(a.geo.ChunkBytes)], from)
	}
	payload := max(0, min(d.PayloadLen, n-d.PayloadOff))
	rec := xdp.Record{Sequence: index, RxNs: now, Src: d.Src, Dst: d.Dst, Queue: uint16(q.number),
		VLAN: d.VLAN, PayloadOff: uint16(start) + uint16(d.PayloadOff),
		PayloadLen: uint16(payload), FrameLen: uint16(n),
		Flags: q.sums[at].Flag(xdp.RecordChecksumOK, xdp.RecordChecksumWrong)}
	if d.Tags > 0 {
		rec.Flags |= xdp.RecordVLAN
	}
	rec.Put(mem[chunk:])
	a.bytesIn += uint64(payload)
	*slot = cq.Entry{Flags: cq.FlagRecv | cq.FlagMsg | cq.FlagFrame, Len: uint64(payload),
		Buf: a.umem.Region().Ref(chunk + start + uint64(d.PayloadOff)), Meta: cq.MetaNoContext}
}

// frameGapBytes keeps packets where the kernel would put them, so that both ways to read a frame
// find the same layout.
const frameGapBytes = 256
