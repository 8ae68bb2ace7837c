package endpoint

import (
	"encoding/binary"
	"net/netip"

	"github.com/shmring/shmring/cq"
)

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
