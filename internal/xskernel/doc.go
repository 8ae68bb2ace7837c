// Package xskernel is what an AF_XDP socket and its kernel have in common, and a kernel that a
// program plays: packages that live on sockets are tested with it, without an interface or
// privilege.
//
//	doc      descriptors and limits, as the kernel has them
//	ring     the memory of one ring, with the kernel's end of it
//	kernel   what the kernel and a driver do with the rings, when they are told to
//	forge    what they never should
package xskernel

// Desc is one entry of a receive or transmit ring, as the kernel defines it (struct xdp_desc).
type Desc struct {
	Addr    uint64 // offset of the first byte within the UMEM
	Len     uint32 // bytes
	Options uint32
}

// PacketContinues is a bit of Desc.Options (XDP_PKT_CONTD): the next descriptor is of the same
// packet.
const PacketContinues = 1 << 0

// NeedWakeup is bit 0 of the flags word of a ring: the kernel sleeps and wants a system call.
const NeedWakeup = 1

const (
	// HeadroomBytes are what the kernel leaves in front of a packet for programs to grow it into.
	HeadroomBytes = 256
	// MinPacketBytes is an Ethernet header. The kernel takes less and drops it without a trace.
	MinPacketBytes = 14
	// TagBytes is a VLAN tag, which the MTU does not count.
	TagBytes = 4
	// MaxChain is how many frames one packet may lie in: what the kernel's own buffers hold
	// (MAX_SKB_FRAGS + 1).
	MaxChain = 18
	// OffsetShift is where, in the address of a packet received in an unaligned chunk, the distance
	// from the beginning of the chunk stands.
	OffsetShift = 48
)
