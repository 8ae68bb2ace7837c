package rtnetlink

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

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

// AppendGetLink appends the question how an interface is.
func AppendGetLink(b []byte, seq uint32, index int) []byte {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	return appendRequest(b, seq, unix.RTM_GETLINK, 0, msg,
		nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
}

// AppendDumpAddresses appends the question what addresses all interfaces have. NLMSG_DONE follows.
func AppendDumpAddresses(b []byte, seq uint32) []byte {
	return appendRequest(b, seq, unix.RTM_GETADDR, unix.NLM_F_DUMP,
		nl.NewIfAddrmsg(unix.AF_UNSPEC))
}

// AppendDumpNeighbours appends the question what neighbours an interface has. NLMSG_DONE follows.
// Kernels that do not know how to choose tell those of all interfaces.
func AppendDumpNeighbours(b []byte, seq uint32, index int) []byte {
	return appendRequest(b, seq, unix.RTM_GETNEIGH, unix.NLM_F_DUMP, &netlink.Ndmsg{},
		nl.NewRtAttr(unix.NDA_IFINDEX, nl.Uint32Attr(uint32(index))))
}

// AppendGetNeighbour appends the question how one neighbour is.
func AppendGetNeighbour(b []byte, seq uint32, index int, a netip.Addr) []byte {
	return appendRequest(b, seq, unix.RTM_GETNEIGH, 0,
		&netlink.Ndmsg{Family: uint8(family(a)), Index: uint32(index)},
		nl.NewRtAttr(unix.NDA_DST, a.AsSlice()))
}

// AppendUse appends the request to treat a neighbour as if a packet had gone to it: the kernel
// finds out its hardware address, or whether what it knows is still so. It needs CAP_NET_ADMIN.
func AppendUse(b []byte, seq uint32, index int, a netip.Addr) []byte {
	return appendRequest(b, seq, unix.RTM_NEWNEIGH, unix.NLM_F_CREATE,
		&netlink.Ndmsg{Family: uint8(family(a)), Index: uint32(index), Flags: unix.NTF_USE},
		nl.NewRtAttr(unix.NDA_DST, a.AsSlice()))
}

// AppendGetRoute appends the question which way packets to an address go: by the interface out if
// that is not 0.
func AppendGetRoute(b []byte, seq uint32, dst netip.Addr, out int) []byte {
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family(dst)), Dst_len: uint8(dst.BitLen())}}
	parts := []nl.NetlinkRequestData{msg, nl.NewRtAttr(unix.RTA_DST, dst.AsSlice())}
	if out != 0 {
		parts = append(parts, nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(out))))
	}
	return appendRequest(b, seq, unix.RTM_GETROUTE, 0, parts...)
}
