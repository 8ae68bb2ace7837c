package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// ErrTooBig is wrapped by Build when the payload does not fit.
var ErrTooBig = errors.New("packet: payload too big")

// Template holds the headers of all frames from one address to another. Building a frame is then a
// copy, three lengths and two checksums. It is used by one goroutine.
type Template struct {
	header [HeaderBytes]byte
	ipSum  uint64 // over the IPv4 header with total length, identification and checksum zero
	udpSum uint64 // over the pseudo header and the ports, without the lengths
	id     uint16
}

// NewTemplate makes the headers of IPv4/UDP frames from src to dst. Fragments are forbidden, since
// nobody here would put them together.
func NewTemplate(srcMAC, dstMAC [6]byte, src, dst netip.AddrPort) (*Template, error) {
	if !src.Addr().Is4() || !dst.Addr().Is4() {
		return nil, fmt.Errorf("packet: template from %v to %v: IPv4 addresses are needed", src, dst)
	}
	t := &Template{}
	h := t.header[:]
	copy(h, dstMAC[:])
	copy(h[6:], srcMAC[:])
	be := binary.BigEndian
	be.PutUint16(h[12:], typeIPv4)
	ip := h[EthernetBytes:]
	ip[0] = 0x45
	be.PutUint16(ip[6:], 0x4000) // do not fragment
	ip[8] = 64                   // hops
	ip[9] = protoUDP
	s, d := src.Addr().As4(), dst.Addr().As4()
	copy(ip[12:], s[:])
	copy(ip[16:], d[:])
	udp := ip[IPv4Bytes:]
	be.PutUint16(udp, src.Port())
	be.PutUint16(udp[2:], dst.Port())
	t.ipSum = sum(0, ip[:IPv4Bytes])
	t.udpSum = sum(sum(protoUDP, ip[12:20]), udp[:4])
	return t, nil
}

// Build writes a frame that carries payload into frame and returns its length in bytes. The payload
// may already lie in place, at frame[HeaderBytes:]. It does not allocate unless it fails.
func (t *Template) Build(frame, payload []byte) (int, error) {
	n := HeaderBytes + len(payload)
	udpLen := UDPBytes + len(payload)
	if n > len(frame) || udpLen+IPv4Bytes > 0xffff {
		return 0, fmt.Errorf("%w: %d bytes do not fit %d", ErrTooBig, len(payload),
			max(0, len(frame)-HeaderBytes))
	}
	copy(frame[HeaderBytes:], payload)
	t.finish(frame[:n:n], udpLen)
	return n, nil
}

func (t *Template) finish(frame []byte, udpLen int) {
	copy(frame, t.header[:])
	be := binary.BigEndian
	t.id++
	ip := frame[EthernetBytes:]
	total := uint16(IPv4Bytes + udpLen)
	be.PutUint16(ip[2:], total)
	be.PutUint16(ip[4:], t.id)
	be.PutUint16(ip[10:], ^fold(t.ipSum+uint64(total)+uint64(t.id)))
	udp := ip[IPv4Bytes:]
	be.PutUint16(udp[4:], uint16(udpLen))
	// The length is summed twice: it stands in the pseudo header and in the header.
	c := ^fold(sum(t.udpSum+2*uint64(udpLen), udp[UDPBytes:]))
	if c == 0 {
		c = 0xffff // zero would say that there is none
	}
	be.PutUint16(udp[6:], c)
}
