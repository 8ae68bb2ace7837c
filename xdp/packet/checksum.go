package packet

import "encoding/binary"

// sum adds b to a ones' complement sum that is kept in 64 bits: 32-bit words are added, and fold
// brings the carries home. It takes up to 2^32 words, far more than a frame has.
func sum(s uint64, b []byte) uint64 {
	for len(b) >= 16 {
		s += uint64(binary.BigEndian.Uint32(b)) + uint64(binary.BigEndian.Uint32(b[4:])) +
			uint64(binary.BigEndian.Uint32(b[8:])) + uint64(binary.BigEndian.Uint32(b[12:]))
		b = b[16:]
	}
	for len(b) >= 4 {
		s += uint64(binary.BigEndian.Uint32(b))
		b = b[4:]
	}
	if len(b) >= 2 {
		s += uint64(binary.BigEndian.Uint16(b)) << 16
		b = b[2:]
		if len(b) == 1 {
			s += uint64(b[0]) << 8
		}
		return s
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 24
	}
	return s
}

// fold reduces a sum to 16 bits.
func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s)
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
	// ChecksumWrong: none of these. The bytes are damaged.
	ChecksumWrong
)

func (c Checksum) String() string {
	return [...]string{"absent", "ok", "partial", "wrong"}[c&3]
}

// VerifyUDP computes the UDP checksum of a datagram that Parse found in frame.
func VerifyUDP(frame []byte, d *Datagram) Checksum {
	udp := frame[d.UDPOff : d.PayloadOff+d.PayloadLen]
	have := binary.BigEndian.Uint16(udp[6:])
	v4 := d.Src.Addr().Is4()
	if have == 0 && v4 {
		return ChecksumAbsent
	}
	var pseudo uint64
	if v4 {
		pseudo = sum(0, frame[d.IPOff+12:d.IPOff+20])
	} else {
		pseudo = sum(0, frame[d.IPOff+8:d.IPOff+40])
	}
	pseudo += protoUDP + uint64(len(udp))
	if fold(sum(pseudo, udp)) == 0xffff {
		return ChecksumOK
	}
	if fold(pseudo) == have {
		return ChecksumPartial
	}
	return ChecksumWrong
}
