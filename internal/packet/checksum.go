package packet

import (
	"encoding/binary"
	"math/bits"
)

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
	return verdict(sum(word(protoUDP)+word(uint16(len(udp))), frame[from:to]), udp, have)
}

// verdict compares the sum that a datagram has, which is not 0, with those over the pseudo header
// and over all of it.
func verdict(pseudo uint64, udp []byte, have uint16) Checksum {
	if fold(sum(pseudo, udp)) == 0xffff {
		return ChecksumOK
	}
	if fold(pseudo) == have {
		return ChecksumPartial
	}
	return ChecksumWrong
}
