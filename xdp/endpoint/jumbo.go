package endpoint

import (
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/xdp"
)

// jumbo is what packets longer than a frame need. Their headers and checksums are made and looked
// at in memory of its own, where the packet is in one piece.
type jumbo struct {
	buf   []byte
	parts [xdp.MaxChain]xdp.Part
}

// scratch returns memory for the longest packet.
func (j *jumbo) scratch() []byte {
	if j.buf == nil {
		j.buf = make([]byte, 1<<16+256)
	}
	return j.buf
}

// buildChain is build for a packet that needs several frames: it is made in one piece and copied to
// them.
func (e *Endpoint) buildChain(p *peer, m *Msg, n int, op cq.Flags) error {
	whole := e.jumbo.scratch()
	total, err := p.template.BuildInPlace(whole, e.gather(whole[p.header:], m, op))
	if err != nil {
		return ErrTooBig
	}
	parts := e.jumbo.parts[:0]
	for at := 0; at < total && err == nil; {
		var frame uint32
		var buf []byte
		if len(parts) == cap(parts) {
			err = ErrTooBig
		} else if frame, buf, err = e.acquire(); err == nil {
			c := copy(buf, whole[at:total])
			parts = append(parts, xdp.Part{Frame: frame, Len: c})
			at += c
		}
	}
	last := uint32(0)
	if err == nil {
		last = parts[len(parts)-1].Frame // it is the one that Reap names
		err = e.socket.PostChain(parts, uint64(last))
		if err != nil {
			err = ErrTooBig
		}
	}
	if err != nil {
		for _, part := range parts {
			e.socket.Abandon(part.Frame)
		}
		return err
	}
	e.accept(last, m.Context, uint32(n), op)
	return nil
}

// chain returns how many of got are one packet.
func chain(got []xdp.Received) int {
	for i := range got {
		if !got[i].More {
			return i + 1
		}
	}
	return len(got)
}

// whole returns a packet in one piece: in its frame, or else copied.
func (e *Endpoint) whole(parts []xdp.Received) []byte {
	if len(parts) == 1 {
		return e.socket.Packet(parts[0])
	}
	buf, n := e.jumbo.scratch(), 0
	for _, r := range parts {
		n += copy(buf[n:], e.socket.Packet(r))
	}
	return buf[:n]
}

// rest makes the completions of the frames behind the first, which lend the rest of a payload: left
// bytes of it. Those behind its end are padding and not lent.
func (l *loans) rest(parts []xdp.Received, p *span, src cq.Addr, left int) {
	for i := range parts {
		p.off, p.n = 0, min(left, int(parts[i].Len))
		if left -= p.n; left == 0 {
			p.flags &^= cq.FlagMore
		}
		if p.n == 0 {
			l.e.socket.Drop(parts[i].Frame)
			continue
		}
		l.put(&parts[i], p, src)
	}
}
