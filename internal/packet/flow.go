package packet

import "encoding/binary"

// Flow reads packets that come in runs. The headers of a packet that is of the same addresses, and
// of the same ports, as the one before are compared with those, rather than read; lengths and
// checksums are looked at as ever. The zero value knows of no packet. What is predicted is UDP over
// IPv4 without tags and options.
type Flow struct {
	// Datagram is the packet that was read last. It is only for reading.
	Datagram Datagram

	known bool
	// The headers of the packet before, as they lie in memory: hardware addresses, type and version,
	// addresses, ports.
	front, back, addrs uint64
	ports              uint32
}

// backMask leaves the type of service out of back: it may change within a flow.
const backMask = 1<<56 - 1

// Read is Parse into f.Datagram, and VerifyUDP. same says that addresses, ports and tags are those
// of the packet that was read before. After an error f knows of no packet.
func (f *Flow) Read(frame []byte) (sum Checksum, same bool, err error) {
	if len(frame) >= HeaderBytes && f.known {
		if sum, ok := f.next(frame); ok {
			return sum, true, nil
		}
	}
	f.known = false
	d := &f.Datagram
	if err := Parse(frame, d); err != nil {
		return 0, false, err
	}
	if d.UDPOff == EthernetBytes+IPv4Bytes { // nothing that is optional: else it is longer
		le := binary.LittleEndian
		f.front, f.back = le.Uint64(frame), le.Uint64(frame[8:])&backMask
		f.addrs, f.ports = le.Uint64(frame[26:]), le.Uint32(frame[34:])
		f.known = true
	}
	return VerifyUDP(frame, d), false, nil
}

// next reads a packet that is as was predicted, and one that Parse takes. The frame has room for
// the headers.
func (f *Flow) next(frame []byte) (Checksum, bool) {
	le, be := binary.LittleEndian, binary.BigEndian
	h := frame[:HeaderBytes]
	total, n := int(be.Uint16(h[16:])), int(be.Uint16(h[38:]))
	addrs, ports := le.Uint64(h[26:]), le.Uint32(h[34:])
	if le.Uint64(h) != f.front || le.Uint64(h[8:])&backMask != f.back ||
		addrs != f.addrs || ports != f.ports ||
		total > len(frame)-EthernetBytes || n < UDPBytes || n > total-IPv4Bytes ||
		be.Uint16(h[20:])&0x3fff != 0 || h[23] != protoUDP ||
		fold(add(add(addrs, le.Uint64(h[14:])), uint64(le.Uint32(h[22:])))) != 0xffff {
		return 0, false
	}
	f.Datagram.PayloadLen = n - UDPBytes
	have := be.Uint16(h[40:])
	if have == 0 {
		return ChecksumAbsent, true
	}
	pseudo := add(word(protoUDP)+word(uint16(n)), addrs)
	return verdict(pseudo, frame[EthernetBytes+IPv4Bytes:][:n], have), true
}
