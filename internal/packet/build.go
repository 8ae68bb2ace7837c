package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
)

// ErrTooBig is wrapped by Build when the payload does not fit.
var ErrTooBig = errors.New("packet: payload too big")

// Tag is one VLAN tag (IEEE 802.1Q).
type Tag struct {
	Kind uint16 // EtherType of the tag: 0x8100, which zero stands for too, or 0x88a8
	TCI  uint16 // priority in the upper 3 bits, VLAN id in the lower 12
}

// Path says between whom the frames of a [Template] go. Src and Dst must be of one family; IPv4
// addresses mapped into IPv6 count as IPv4, zones are ignored.
type Path struct {
	LocalMAC, NextMAC [6]byte
	Tags              []Tag // outermost first, at most two
	Src, Dst          netip.AddrPort
	HopLimit          uint8 // 0 stands for 64, or 1 to a multicast group, as sockets have it
	TrafficClass      uint8 // differentiated services and ECN
}

// Template holds the headers of all frames of a [Path]. Building a frame is then a copy, the
// lengths, and the checksums. It is used by one goroutine.
type Template struct {
	header    [EthernetBytes + maxTags*VLANBytes + IPv6Bytes + UDPBytes]byte
	ipOff     int
	udpOff    int
	headerLen int
	v6        bool
	ipSum     uint64 // over the IPv4 header with total length, identification and checksum zero
	udpSum    uint64 // over the pseudo header and the ports, without the lengths
	id        uint16
}

// NewTemplate makes the headers of untagged frames from src to dst.
func NewTemplate(srcMAC, dstMAC [6]byte, src, dst netip.AddrPort) (*Template, error) {
	return Path{LocalMAC: srcMAC, NextMAC: dstMAC, Src: src, Dst: dst}.Template()
}

// Template makes the headers of the frames of a path. Fragments are forbidden, since nobody here
// would put them together.
func (p Path) Template() (*Template, error) {
	src, dst := p.Src.Addr().Unmap().WithZone(""), p.Dst.Addr().Unmap().WithZone("")
	if !src.IsValid() || src.BitLen() != dst.BitLen() {
		return nil, fmt.Errorf("packet: path from %v to %v: two addresses of one family are needed",
			p.Src, p.Dst)
	}
	if len(p.Tags) > maxTags {
		return nil, fmt.Errorf("packet: %d VLAN tags, possible are %d", len(p.Tags), maxTags)
	}
	if p.HopLimit == 0 {
		p.HopLimit = 64
		if dst.IsMulticast() {
			p.HopLimit = 1
		}
	}
	t := &Template{v6: src.Is6()}
	copy(t.header[:], p.NextMAC[:])
	copy(t.header[6:], p.LocalMAC[:])
	t.ethernet(p.Tags)
	if t.v6 {
		t.ipv6(p, src.As16(), dst.As16())
	} else {
		t.ipv4(p, src.As4(), dst.As4())
	}
	return t, nil
}

func (t *Template) ethernet(tags []Tag) {
	at := 12
	for _, tag := range tags {
		if tag.Kind == 0 {
			tag.Kind = typeVLAN
		}
		binary.BigEndian.PutUint16(t.header[at:], tag.Kind)
		binary.BigEndian.PutUint16(t.header[at+2:], tag.TCI)
		at += VLANBytes
	}
	kind := uint16(typeIPv4)
	if t.v6 {
		kind = typeIPv6
	}
	binary.BigEndian.PutUint16(t.header[at:], kind)
	t.ipOff = at + 2
}

func (t *Template) ipv4(p Path, src, dst [4]byte) {
	ip := t.header[t.ipOff:]
	ip[0], ip[1] = 0x45, p.TrafficClass
	ip[6] = 0x40 // do not fragment
	ip[8], ip[9] = p.HopLimit, protoUDP
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	t.ipSum = sum(0, ip[:IPv4Bytes])
	t.udp(p, t.ipOff+IPv4Bytes, ip[12:20])
}

func (t *Template) ipv6(p Path, src, dst [16]byte) {
	ip := t.header[t.ipOff:]
	ip[0], ip[1] = 0x60|p.TrafficClass>>4, p.TrafficClass<<4
	ip[6], ip[7] = protoUDP, p.HopLimit
	copy(ip[8:], src[:])
	copy(ip[24:], dst[:])
	t.udp(p, t.ipOff+IPv6Bytes, ip[8:40])
}

func (t *Template) udp(p Path, off int, addresses []byte) {
	udp := t.header[off:]
	binary.BigEndian.PutUint16(udp, p.Src.Port())
	binary.BigEndian.PutUint16(udp[2:], p.Dst.Port())
	t.udpSum = sum(sum(word(protoUDP), addresses), udp[:4])
	t.udpOff, t.headerLen = off, off+UDPBytes
}

// HeaderLen is the number of bytes in front of the payload.
func (t *Template) HeaderLen() int { return t.headerLen }

// MaxPayload is the longest payload, in bytes, that passes an interface with this MTU in one piece;
// 0 if not even the headers do.
func (t *Template) MaxPayload(mtu int) int {
	most := 0xffff - UDPBytes
	if !t.v6 {
		most -= IPv4Bytes
	}
	return max(0, min(most, mtu-(t.headerLen-t.ipOff)))
}

// Build writes a frame that carries payload into frame and returns its length in bytes. The payload
// may already lie in place. It does not allocate unless it fails.
func (t *Template) Build(frame, payload []byte) (int, error) {
	if err := t.fits(len(frame), len(payload)); err != nil {
		return 0, err
	}
	copy(frame[t.headerLen:], payload)
	return t.finish(frame, len(payload)), nil
}

// BuildInPlace puts headers in front of the n bytes of payload at frame[HeaderLen():].
func (t *Template) BuildInPlace(frame []byte, n int) (int, error) {
	if n < 0 {
		return 0, fmt.Errorf("packet: payload of %d bytes", n)
	}
	if err := t.fits(len(frame), n); err != nil {
		return 0, err
	}
	return t.finish(frame, n), nil
}

func (t *Template) fits(frame, payload int) error {
	if t.headerLen+payload > frame || payload > t.MaxPayload(1<<20) {
		return fmt.Errorf("%w: %d bytes do not fit %d", ErrTooBig, payload,
			max(0, min(frame-t.headerLen, t.MaxPayload(1<<20))))
	}
	return nil
}

// finish writes the headers in front of a payload of n bytes.
func (t *Template) finish(frame []byte, n int) int {
	frame = frame[: t.headerLen+n : t.headerLen+n]
	copy(frame, t.header[:t.headerLen])
	be := binary.BigEndian
	udpLen := uint16(UDPBytes + n)
	ip := frame[t.ipOff:]
	if t.v6 {
		be.PutUint16(ip[4:], udpLen)
	} else {
		t.id++
		total := IPv4Bytes + udpLen
		be.PutUint16(ip[2:], total)
		be.PutUint16(ip[4:], t.id)
		be.PutUint16(ip[10:], ^fold(add(t.ipSum, word(total)+word(t.id))))
	}
	udp := frame[t.udpOff:]
	be.PutUint16(udp[4:], udpLen)
	// The length is summed twice: it stands in the pseudo header and in the header.
	c := ^fold(sum(add(t.udpSum, 2*word(udpLen)), udp[UDPBytes:]))
	if c == 0 {
		c = 0xffff // zero would say that there is none
	}
	be.PutUint16(udp[6:], c)
	return len(frame)
}

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
func (f *Flow) Read(frame []byte) (c Checksum, same bool, err error) {
	if len(frame) < HeaderBytes || !f.known {
		return f.first(frame)
	}
	le, be := binary.LittleEndian, binary.BigEndian
	h := frame[:HeaderBytes]
	total, n := int(be.Uint16(h[16:])), int(be.Uint16(h[38:]))
	addrs, ports := le.Uint64(h[26:]), le.Uint32(h[34:])
	if le.Uint64(h) != f.front || le.Uint64(h[8:])&backMask != f.back ||
		addrs != f.addrs || ports != f.ports ||
		total > len(frame)-EthernetBytes || n < UDPBytes || n > total-IPv4Bytes ||
		be.Uint16(h[20:])&0x3fff != 0 || h[23] != protoUDP ||
		!right(add(add(addrs, le.Uint64(h[14:])), uint64(le.Uint32(h[22:])))) {
		return f.first(frame)
	}
	f.Datagram.PayloadLen = n - UDPBytes
	have := be.Uint16(h[40:])
	if have == 0 {
		return ChecksumAbsent, true, nil
	}
	pseudo := add(word(protoUDP)+word(uint16(n)), addrs)
	return verdict(pseudo, sum(pseudo, frame[EthernetBytes+IPv4Bytes:][:n]), have), true, nil
}

// first reads a packet that is not as was predicted.
func (f *Flow) first(frame []byte) (c Checksum, same bool, err error) {
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

// What a lookup of a hop can find instead of one.
var (
	// ErrResolving: the kernel has been asked for the hardware address and has no answer yet
	// (EAGAIN). Ask again later.
	ErrResolving = fmt.Errorf("packet: hardware address is being resolved: %w", syscall.EAGAIN)
	// ErrUnreachable: there is no route, or nobody answered (EHOSTUNREACH).
	ErrUnreachable = fmt.Errorf("packet: destination cannot be reached: %w", syscall.EHOSTUNREACH)
)

// MulticastMAC returns the hardware address that frames to a group go to (RFC 1112, RFC 2464), or
// to all stations for the limited broadcast address. ok is false for any other address: its
// neighbour has to be asked for.
func MulticastMAC(group netip.Addr) (mac [6]byte, ok bool) {
	group = group.Unmap()
	switch {
	case !group.IsValid():
		return mac, false
	case group.Is4() && group == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, true
	case !group.IsMulticast():
		return mac, false
	case group.Is4():
		a := group.As4()
		return [6]byte{0x01, 0x00, 0x5e, a[1] & 0x7f, a[2], a[3]}, true
	}
	a := group.As16()
	return [6]byte{0x33, 0x33, a[12], a[13], a[14], a[15]}, true
}
