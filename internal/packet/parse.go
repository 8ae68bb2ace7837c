// Package packet reads and builds the Ethernet frames of UDP datagrams. It is pure: it sees bytes
// and nothing else.
package packet

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"net/netip"
)

// Why a frame is not a datagram that can be handed on.
var (
	ErrShort    = errors.New("packet: frame ends inside a header")
	ErrNotUDP   = errors.New("packet: not a UDP datagram over IPv4 or IPv6")
	ErrFragment = errors.New("packet: fragment of a datagram")
	ErrLength   = errors.New("packet: length field does not fit the frame")
	ErrChecksum = errors.New("packet: wrong checksum")
	ErrMapped   = errors.New("packet: IPv6 header with an IPv4 address in it")
)

// Sizes of headers, in bytes.
const (
	EthernetBytes = 14
	VLANBytes     = 4
	IPv4Bytes     = 20
	IPv6Bytes     = 40
	UDPBytes      = 8
	// HeaderBytes precede the payload of an untagged frame over IPv4; see Template.HeaderLen.
	HeaderBytes = EthernetBytes + IPv4Bytes + UDPBytes
	// MaxExtensions is the number of IPv6 extension headers that Parse walks over.
	MaxExtensions = 6
)

const (
	typeIPv4 = 0x0800
	typeIPv6 = 0x86dd
	typeVLAN = 0x8100
	typeQinQ = 0x88a8
	protoUDP = 17
	maxTags  = 2

	extHopByHop    = 0
	extRouting     = 43
	extFragment    = 44
	extDestination = 60
)

// Datagram says where in a frame the parts of a UDP datagram are.
type Datagram struct {
	SrcMAC, DstMAC [6]byte
	Src, Dst       netip.AddrPort
	VLAN           uint16 // tag control information of the outermost tag
	Tags           int    // number of tags
	IPOff          int    // offset of the IP header in the frame
	UDPOff         int    // offset of the UDP header in the frame
	PayloadOff     int
	PayloadLen     int // from the UDP header, never beyond the frame
}

// Untagged reports whether a datagram is of no VLAN: it may have one tag, of a priority alone.
func (d *Datagram) Untagged() bool { return d.Tags < maxTags && d.VLAN&0xfff == 0 }

// Own reports whether a datagram is for an interface itself whose addresses are local, each with
// the hardware address that frames to it go to: untagged, and to one of them.
func (d *Datagram) Own(local map[netip.Addr][6]byte) bool {
	mac, ok := local[d.Dst.Addr()]
	return ok && mac == d.DstMAC && d.Untagged()
}

// Parse finds the UDP datagram in an Ethernet frame, behind at most two VLAN tags, IPv4 options,
// and those IPv6 extension headers that do not change whom it is for: hop-by-hop and destination
// options, and routing headers that are used up. The IPv4 header checksum is verified, the UDP
// checksum is not: see VerifyUDP. Fragments are refused, and so are IPv4-mapped addresses, which
// have no place on a wire: whoever compares addresses would take them for the IPv4 ones. d is left
// in an unspecified state on error. It does not allocate.
func Parse(frame []byte, d *Datagram) error {
	if len(frame) < EthernetBytes {
		return ErrShort
	}
	copy(d.DstMAC[:], frame)
	copy(d.SrcMAC[:], frame[6:])
	d.VLAN, d.Tags = 0, 0
	kind := binary.BigEndian.Uint16(frame[12:])
	off := EthernetBytes
	for kind == typeVLAN || kind == typeQinQ {
		if d.Tags == maxTags {
			return ErrNotUDP
		}
		if len(frame) < off+VLANBytes {
			return ErrShort
		}
		if d.Tags == 0 {
			d.VLAN = binary.BigEndian.Uint16(frame[off:])
		}
		kind = binary.BigEndian.Uint16(frame[off+2:])
		off += VLANBytes
		d.Tags++
	}
	d.IPOff = off
	switch kind {
	case typeIPv4:
		return parseIPv4(frame, d)
	case typeIPv6:
		return parseIPv6(frame, d)
	}
	return ErrNotUDP
}

func parseIPv4(frame []byte, d *Datagram) error {
	ip := frame[d.IPOff:]
	if len(ip) < IPv4Bytes {
		return ErrShort
	}
	header := int(ip[0]&0xf) * 4
	if ip[0]>>4 != 4 || header < IPv4Bytes {
		return ErrNotUDP
	}
	total := int(binary.BigEndian.Uint16(ip[2:]))
	if total < header || total > len(ip) {
		return ErrLength
	}
	if ip[9] != protoUDP {
		return ErrNotUDP
	}
	// More-fragments or an offset: neither the first part nor a later one is a datagram.
	if binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
		return ErrFragment
	}
	if !right(sum(0, ip[:header])) {
		return ErrChecksum
	}
	src, dst := netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
	return parseUDP(frame, d, d.IPOff+header, d.IPOff+total, src, dst)
}

func parseIPv6(frame []byte, d *Datagram) error {
	ip := frame[d.IPOff:]
	if len(ip) < IPv6Bytes {
		return ErrShort
	}
	if ip[0]>>4 != 6 {
		return ErrNotUDP
	}
	total := IPv6Bytes + int(binary.BigEndian.Uint16(ip[4:]))
	if total > len(ip) {
		return ErrLength
	}
	off, err := skipExtensions(ip[:total])
	if err != nil {
		return err
	}
	src, dst := netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
	if src.Is4In6() || dst.Is4In6() {
		return ErrMapped
	}
	return parseUDP(frame, d, d.IPOff+off, d.IPOff+total, src, dst)
}

// skipExtensions returns the offset of the UDP header in an IPv6 packet.
func skipExtensions(ip []byte) (int, error) {
	kind, off := ip[6], IPv6Bytes
	for n := 0; kind != protoUDP; n++ {
		switch kind {
		case extHopByHop:
			if off != IPv6Bytes {
				return 0, ErrNotUDP
			}
		case extRouting, extDestination:
		case extFragment:
			return 0, ErrFragment
		default:
			return 0, ErrNotUDP
		}
		if n == MaxExtensions {
			return 0, ErrNotUDP
		}
		if len(ip) < off+8 {
			return 0, ErrShort
		}
		// With segments left the address in the header is not the last, and the datagram is for
		// the kernel to send on.
		if kind == extRouting && ip[off+3] != 0 {
			return 0, ErrNotUDP
		}
		kind, off = ip[off], off+8*(int(ip[off+1])+1)
	}
	return off, nil
}

// parseUDP reads the UDP header at off; the datagram must end before end.
func parseUDP(frame []byte, d *Datagram, off, end int, src, dst netip.Addr) error {
	if end-off < UDPBytes {
		return ErrShort
	}
	udp := frame[off:end]
	n := int(binary.BigEndian.Uint16(udp[4:]))
	if n < UDPBytes || n > len(udp) {
		return ErrLength
	}
	d.Src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(udp))
	d.Dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(udp[2:]))
	d.UDPOff, d.PayloadOff, d.PayloadLen = off, off+UDPBytes, n-UDPBytes
	return nil
}

// sum adds b to a ones' complement sum. Words are added as they lie in memory, little end first:
// such a sum is that of RFC 1071 with its bytes swapped, so fold swaps once at the end.
func sum(s uint64, b []byte) uint64 {
	le := binary.LittleEndian
	var c uint64
	for len(b) >= 64 {
		x := b[:64:64]
		s, c = bits.Add64(s, le.Uint64(x), 0)
		s, c = bits.Add64(s, le.Uint64(x[8:]), c)
		s, c = bits.Add64(s, le.Uint64(x[16:]), c)
		s, c = bits.Add64(s, le.Uint64(x[24:]), c)
		s, c = bits.Add64(s, le.Uint64(x[32:]), c)
		s, c = bits.Add64(s, le.Uint64(x[40:]), c)
		s, c = bits.Add64(s, le.Uint64(x[48:]), c)
		s, c = bits.Add64(s, le.Uint64(x[56:]), c)
		s, c = bits.Add64(s, 0, c)
		s += c
		b = b[64:]
	}
	for len(b) >= 8 {
		s = add(s, le.Uint64(b))
		b = b[8:]
	}
	if len(b) >= 4 {
		s = add(s, uint64(le.Uint32(b)))
		b = b[4:]
	}
	if len(b) >= 2 {
		s = add(s, uint64(le.Uint16(b)))
		b = b[2:]
	}
	if len(b) == 1 {
		s = add(s, uint64(b[0]))
	}
	return s
}

// add brings the carry around, as often as it takes.
func add(s, v uint64) uint64 {
	s, c := bits.Add64(s, v, 0)
	return s + c
}

// word is a field of 16 bits as sum would have read it.
func word(n uint16) uint64 { return uint64(bits.ReverseBytes16(n)) }

// fold reduces a sum to the 16 bits of RFC 1071, before they are inverted.
func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return bits.ReverseBytes16(uint16(s))
}

// right says whether a sum over bytes that hold their own checksum is right. No such sum is 0,
// since a version or a protocol is in it.
func right(s uint64) bool { return s%0xffff == 0 }

// Checksum is the state of a datagram's UDP checksum.
type Checksum uint8

// What VerifyUDP finds.
const (
	// ChecksumAbsent: the sender left it out, as IPv4 allows.
	ChecksumAbsent Checksum = iota
	// ChecksumOK: it is the right sum over the bytes.
	ChecksumOK
	// ChecksumPartial: only the pseudo header was summed. A datagram that another socket of this
	// host sent over veth looks like this, since no wire would ever need the rest.
	ChecksumPartial
	// ChecksumWrong: none of these, or none at all over IPv6. The bytes are damaged.
	ChecksumWrong
)

// Flag returns ok or wrong if c is that, and 0 for a sum that says nothing about the bytes.
func (c Checksum) Flag(ok, wrong uint16) uint16 {
	switch c {
	case ChecksumOK:
		return ok
	case ChecksumWrong:
		return wrong
	}
	return 0
}

func (c Checksum) String() string {
	return [...]string{"absent", "ok", "partial", "wrong"}[c&3]
}

// VerifyUDP computes the UDP checksum of a datagram that Parse found in frame.
func VerifyUDP(frame []byte, d *Datagram) Checksum {
	udp := frame[d.UDPOff : d.PayloadOff+d.PayloadLen]
	have := binary.BigEndian.Uint16(udp[6:])
	v4 := d.Src.Addr().Is4()
	if have == 0 {
		if v4 {
			return ChecksumAbsent
		}
		return ChecksumWrong
	}
	from, to := d.IPOff+8, d.IPOff+IPv6Bytes
	if v4 {
		from, to = d.IPOff+12, d.IPOff+IPv4Bytes
	}
	pseudo := sum(word(protoUDP)+word(uint16(len(udp))), frame[from:to])
	return verdict(pseudo, sum(pseudo, udp), have)
}

// verdict compares the sum that a datagram has, which is not 0, with those over the pseudo header
// and over all of it.
func verdict(pseudo, all uint64, have uint16) Checksum {
	if right(all) {
		return ChecksumOK
	}
	if fold(pseudo) == have {
		return ChecksumPartial
	}
	return ChecksumWrong
}
