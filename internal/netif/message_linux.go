package netif

import (
	"encoding/binary"
	"iter"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// message is one of a datagram. Body points into it.
type message struct {
	Type, Flags uint16
	Seq, Port   uint32
	Body        []byte
}

var native = binary.LittleEndian // of what the kernel writes in its own order; see package shm

const (
	headerBytes    = unix.SizeofNlMsghdr
	attributeBytes = unix.SizeofRtAttr
	typeMask       = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
)

func align(n int) int { return (n + 3) &^ 3 }

// messages yields the messages of a datagram, up to the first that cannot be one.
func messages(b []byte) iter.Seq[message] {
	return func(yield func(message) bool) {
		for len(b) >= headerBytes {
			n := native.Uint32(b)
			if n < headerBytes || uint64(n) > uint64(len(b)) {
				return
			}
			m := message{native.Uint16(b[4:]), native.Uint16(b[6:]), native.Uint32(b[8:]),
				native.Uint32(b[12:]), b[headerBytes:n:n]}
			if !yield(m) {
				return
			}
			b = b[min(align(int(n)), len(b)):]
		}
	}
}

// attributes yields type and value of what stands in b, up to the first that cannot be.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attributeBytes {
			n := int(native.Uint16(b))
			if n < attributeBytes || n > len(b) {
				return
			}
			if !yield(native.Uint16(b[2:])&typeMask, b[attributeBytes:n:n]) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

func number(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return native.Uint32(v)
}

// address returns what v holds as an address of the family's length, or the zero Addr.
func address(family uint8, v []byte) netip.Addr {
	a, ok := netip.AddrFromSlice(v)
	if !ok || a.Is4() != (family == unix.AF_INET) {
		return netip.Addr{}
	}
	return a
}

// Errno returns the error number of an NLMSG_ERROR message; 0 acknowledges.
func (m message) Errno() (unix.Errno, bool) {
	if m.Type != unix.NLMSG_ERROR || len(m.Body) < 4 {
		return 0, false
	}
	return unix.Errno(-int32(native.Uint32(m.Body))), true
}

// linkNews is what a message says about an interface (RTM_NEWLINK, RTM_DELLINK).
type linkNews struct {
	Index int
	Name  string
	Flags uint32 // IFF_*
	MTU   int
	MAC   [6]byte
	// HasMAC is whether the interface has an address of that length.
	HasMAC bool
	// OperState is IF_OPER_*, 0 if unknown.
	OperState uint8
	// ProgramID is the XDP program's, 0 if there is none; of several, the one in the mode that
	// comes first: driver, generic, device.
	ProgramID uint32
	// Moved is set in the RTM_DELLINK of an interface that went to another namespace.
	Moved bool
	// PortLink is set for a message about the interface as a port of a bridge, which repeats
	// little and means nothing here.
	PortLink bool
}

// Up reports whether the interface is up and has a carrier.
func (l *linkNews) Up() bool {
	return l.Flags&unix.IFF_UP != 0 && l.Flags&unix.IFF_RUNNING != 0
}

// Link takes the message apart. Attributes that are not there leave zeroes.
func (m message) Link() (l linkNews, ok bool) {
	b := m.Body
	if m.Type != unix.RTM_NEWLINK && m.Type != unix.RTM_DELLINK || len(b) < unix.SizeofIfInfomsg {
		return l, false
	}
	l.PortLink = b[0] != unix.AF_UNSPEC
	l.Index, l.Flags = int(int32(native.Uint32(b[4:]))), native.Uint32(b[8:])
	for t, v := range attributes(b[unix.SizeofIfInfomsg:]) {
		switch t {
		case unix.IFLA_IFNAME:
			for len(v) > 0 && v[len(v)-1] == 0 {
				v = v[:len(v)-1]
			}
			l.Name = string(v)
		case unix.IFLA_MTU:
			l.MTU = int(min(number(v), 1<<30))
		case unix.IFLA_ADDRESS:
			if l.HasMAC = len(v) == len(l.MAC); l.HasMAC {
				l.MAC = [6]byte(v)
			}
		case unix.IFLA_OPERSTATE:
			if len(v) > 0 {
				l.OperState = v[0]
			}
		case unix.IFLA_NEW_NETNSID, unix.IFLA_NEW_IFINDEX:
			l.Moved = true
		case unix.IFLA_XDP:
			l.ProgramID = programID(v)
		}
	}
	return l, true
}

func programID(nested []byte) (id uint32) {
	first := uint16(unix.IFLA_XDP_HW_PROG_ID + 1)
	for t, v := range attributes(nested) {
		if n := number(v); n != 0 && t >= unix.IFLA_XDP_DRV_PROG_ID && t < first {
			first, id = t, n
		}
	}
	return id
}

// addressNews is what a message says about an interface's own address (RTM_NEWADDR, RTM_DELADDR).
type addressNews struct {
	Index  int
	Prefix netip.Prefix
	Peer   netip.Addr // at the other end of the link; else the address itself
	// Tentative is set while the address must not be used: duplicates are being looked for, or
	// one was found.
	Tentative bool
}

// Address takes the message apart. It fails if no address stands in it.
func (m message) Address() (a addressNews, ok bool) {
	b := m.Body
	if m.Type != unix.RTM_NEWADDR && m.Type != unix.RTM_DELADDR || len(b) < unix.SizeofIfAddrmsg {
		return a, false
	}
	family, bits, flags := b[0], int(b[1]), uint32(b[2])
	a.Index = int(int32(native.Uint32(b[4:])))
	var local, prefix netip.Addr
	for t, v := range attributes(b[unix.SizeofIfAddrmsg:]) {
		switch t {
		case unix.IFA_LOCAL:
			local = address(family, v)
		case unix.IFA_ADDRESS:
			prefix = address(family, v)
		case unix.IFA_FLAGS:
			flags = number(v)
		}
	}
	// On a link with a peer, IFA_ADDRESS is the peer's.
	if !local.IsValid() {
		local = prefix
	}
	a.Prefix, a.Peer = netip.PrefixFrom(local, bits), prefix
	a.Tentative = flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 &&
		flags&unix.IFA_F_OPTIMISTIC == 0
	return a, a.Prefix.IsValid()
}

// neighbourNews is what a message says about a neighbour (RTM_NEWNEIGH, RTM_DELNEIGH).
type neighbourNews struct {
	Index  int
	Addr   netip.Addr
	State  uint16 // NUD_*
	MAC    [6]byte
	HasMAC bool
	Proxy  bool // not a neighbour but an address that the kernel answers for
}

// Neighbour takes the message apart. It fails if no IP address stands in it.
func (m message) Neighbour() (n neighbourNews, ok bool) {
	b := m.Body
	if m.Type != unix.RTM_NEWNEIGH && m.Type != unix.RTM_DELNEIGH || len(b) < unix.SizeofNdMsg {
		return n, false
	}
	family := b[0]
	if family != unix.AF_INET && family != unix.AF_INET6 {
		return n, false
	}
	n.Index, n.State = int(int32(native.Uint32(b[4:]))), native.Uint16(b[8:])
	n.Proxy = b[10]&unix.NTF_PROXY != 0
	for t, v := range attributes(b[unix.SizeofNdMsg:]) {
		switch t {
		case unix.NDA_DST:
			n.Addr = address(family, v)
		case unix.NDA_LLADDR:
			if n.HasMAC = len(v) == len(n.MAC); n.HasMAC {
				n.MAC = [6]byte(v)
			}
		}
	}
	return n, n.Addr.IsValid()
}

// routeNews is what the kernel answers when it is asked the way to an address (RTM_GETROUTE).
type routeNews struct {
	Kind    uint8 // RTN_*
	Out     int   // index of the interface that packets leave by
	Gateway netip.Addr
	Source  netip.Addr
	MTU     int // 0: that of the interface
}

// Route takes the message apart.
func (m message) Route() (r routeNews, ok bool) {
	b := m.Body
	if m.Type != unix.RTM_NEWROUTE && m.Type != unix.RTM_DELROUTE || len(b) < unix.SizeofRtMsg {
		return r, false
	}
	family := b[0]
	r.Kind = b[7]
	for t, v := range attributes(b[unix.SizeofRtMsg:]) {
		switch t {
		case unix.RTA_OIF:
			r.Out = int(int32(number(v)))
		case unix.RTA_GATEWAY:
			r.Gateway = address(family, v)
		case unix.RTA_VIA:
			// A next hop of another family than the route's (RFC 5549).
			if len(v) > 2 {
				r.Gateway = address(uint8(native.Uint16(v)), v[2:])
			}
		case unix.RTA_PREFSRC:
			r.Source = address(family, v)
		case unix.RTA_METRICS:
			for t, v := range attributes(v) {
				if t == unix.RTAX_MTU {
					r.MTU = int(min(number(v), 1<<30))
				}
			}
		}
	}
	return r, true
}

const skipStats = 8 // RTEXT_FILTER_SKIP_STATS, which neither library names

func appendRequest(b []byte, seq uint32, kind, flags int, parts ...nl.NetlinkRequestData) []byte {
	r := nl.NewNetlinkRequest(kind, flags)
	r.Seq = seq
	for _, p := range parts {
		r.AddData(p)
	}
	return append(b, r.Serialize()...)
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// appendGetLink appends the question how an interface is.
func appendGetLink(b []byte, seq uint32, index int) []byte {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	return appendRequest(b, seq, unix.RTM_GETLINK, 0, msg,
		nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
}

// appendDumpAddresses appends the question what addresses all interfaces have. NLMSG_DONE follows.
func appendDumpAddresses(b []byte, seq uint32) []byte {
	return appendRequest(b, seq, unix.RTM_GETADDR, unix.NLM_F_DUMP,
		nl.NewIfAddrmsg(unix.AF_UNSPEC))
}

// appendDumpNeighbours appends the question what neighbours an interface has. NLMSG_DONE follows.
// Kernels that do not know how to choose tell those of all interfaces.
func appendDumpNeighbours(b []byte, seq uint32, index int) []byte {
	return appendRequest(b, seq, unix.RTM_GETNEIGH, unix.NLM_F_DUMP, &netlink.Ndmsg{},
		nl.NewRtAttr(unix.NDA_IFINDEX, nl.Uint32Attr(uint32(index))))
}

// appendGetNeighbour appends the question how one neighbour is.
func appendGetNeighbour(b []byte, seq uint32, index int, a netip.Addr) []byte {
	return appendRequest(b, seq, unix.RTM_GETNEIGH, 0,
		&netlink.Ndmsg{Family: uint8(family(a)), Index: uint32(index)},
		nl.NewRtAttr(unix.NDA_DST, a.AsSlice()))
}

// appendUse appends the request to treat a neighbour as if a packet had gone to it: the kernel
// finds out its hardware address, or whether what it knows is still so. It needs CAP_NET_ADMIN.
func appendUse(b []byte, seq uint32, index int, a netip.Addr) []byte {
	return appendRequest(b, seq, unix.RTM_NEWNEIGH, unix.NLM_F_CREATE,
		&netlink.Ndmsg{Family: uint8(family(a)), Index: uint32(index), Flags: unix.NTF_USE},
		nl.NewRtAttr(unix.NDA_DST, a.AsSlice()))
}

// appendGetRoute appends the question which way packets to an address go: by the interface out if
// that is not 0.
func appendGetRoute(b []byte, seq uint32, dst netip.Addr, out int) []byte {
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family(dst)), Dst_len: uint8(dst.BitLen())}}
	parts := []nl.NetlinkRequestData{msg, nl.NewRtAttr(unix.RTA_DST, dst.AsSlice())}
	if out != 0 {
		parts = append(parts, nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(out))))
	}
	return appendRequest(b, seq, unix.RTM_GETROUTE, 0, parts...)
}
