package xdp

import (
	"fmt"
	"net/netip"
	"syscall"

	"github.com/shmring/shmring/shm"
)

// What can be wrong with rules.
var (
	// ErrRule: no frame can match the rule, or it matches what must not be taken (EINVAL).
	ErrRule = shm.Sentinel("bad rule", syscall.EINVAL)
	// ErrRuleExists: another rule matches exactly the same frames (EEXIST).
	ErrRuleExists = shm.Sentinel("rule exists", syscall.EEXIST)
	// ErrNoRule: no rule has this number (ENOENT).
	ErrNoRule = shm.Sentinel("no such rule", syscall.ENOENT)
	// ErrRulesFull: the program has no room for the rule (E2BIG).
	ErrRulesFull = shm.Sentinel("too many rules", syscall.E2BIG)
)

// Rule says which frames it is about: those that agree with all fields that are not zero. A rule
// without any field is about every frame, and must say so with All.
//
// Of several rules that match a frame the most special one decides: one with a UDPPort before one
// without, then one with Dst, then one with VLAN or Untagged, then one with EtherType; of two that
// name the same fields the one with the longer prefix. Local comes last.
//
// A rule without Local or Dst takes frames whatever their destination: on a router also those that
// the kernel would have forwarded, in promiscuous mode those for other hosts too.
//
// Some frames go to the kernel's stack whatever the rules say: fragments, frames that end inside a
// header, IPv6 extension headers that are unusual (more than [packet.MaxExtensions], a routing
// header that is not used up), and what a host needs to stay reachable: ARP, IGMP, IPv6 neighbour
// and multicast listener messages, SSH unless ProgramOptions.SteerSSH, and DHCP for a client unless
// a rule names its port.
//
// The tag that a driver took out of the frame is not seen; the frame then counts as untagged. On a
// veth pair that is so for tags of the kernel's own VLAN interfaces.
type Rule struct {
	UDPPort   uint16       // destination port of UDP over IPv4 or IPv6
	Dst       netip.Prefix // destination address; a whole one is a prefix of all its bits
	VLAN      uint16       // id of the outermost VLAN tag, 1 to 4094
	Untagged  bool         // no VLAN tag, or one with priority only
	EtherType uint16       // behind at most two VLAN tags
	// Local: for the interface itself, that is untagged and to what [Program.SetLocal] was told last.
	Local bool
	All   bool
}

// Local says which destinations are an interface's own: its addresses, each with the hardware
// address that frames to it go to, and the groups that it is in with theirs. Addresses are without
// zone, and never IPv4 ones mapped to IPv6. A datagram to one of them with its hardware address is
// for the interface itself if it is untagged too, or has a priority tag alone.
type Local map[netip.Addr][6]byte

// Fields of a rule, as the program knows them. As a number they order rules by speciality.
const (
	fieldLocal = 1 << iota
	fieldEtherType
	fieldVLAN
	fieldDst
	fieldPort
)

const (
	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeIPv6 = 0x86dd
	portSSH  = 22
)

func (r Rule) fields() (f int) {
	if r.UDPPort != 0 {
		f |= fieldPort
	}
	if r.Dst.IsValid() {
		f |= fieldDst
	}
	if r.VLAN != 0 || r.Untagged {
		f |= fieldVLAN
	}
	if r.EtherType != 0 {
		f |= fieldEtherType
	}
	if r.Local {
		f |= fieldLocal
	}
	return f
}

// normal returns the rule with its prefix in the one form that is compared.
func (r Rule) normal() Rule {
	if r.Dst.IsValid() {
		a, bits := r.Dst.Addr(), r.Dst.Bits()
		if a.Is4In6() && bits >= 96 {
			a, bits = a.Unmap(), bits-96
		}
		r.Dst = netip.PrefixFrom(a, bits).Masked()
	}
	return r
}

// check says what is wrong with a rule that was made normal.
func (r Rule) check() error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: %s", ErrRule, fmt.Sprintf(format, a...))
	}
	ip := r.EtherType == 0 || r.EtherType == typeIPv4 || r.EtherType == typeIPv6
	switch {
	case r.fields() == 0 && !r.All:
		return bad("it has no field; All says that every frame is meant")
	case r.fields() != 0 && r.All:
		return bad("All contradicts the fields %v", r)
	case r.VLAN > 4094:
		return bad("VLAN %d, possible are 1 to 4094", r.VLAN)
	case r.VLAN != 0 && r.Untagged:
		return bad("VLAN %d and untagged", r.VLAN)
	case r.VLAN != 0 && r.Local:
		return bad("VLAN %d and local, which is untagged", r.VLAN)
	case r.EtherType == typeARP:
		return bad("ARP is always the kernel's")
	case r.EtherType != 0 && r.EtherType < 0x600:
		return bad("EtherType %#x is a length, possible are 0x600 and up", r.EtherType)
	case !ip && (r.UDPPort != 0 || r.Dst.IsValid() || r.Local):
		return bad("EtherType %#x has no ports or addresses of IP", r.EtherType)
	case r.Dst.IsValid() && r.EtherType != 0 && r.Dst.Addr().Is4() != (r.EtherType == typeIPv4):
		return bad("EtherType %#x has no address in %v", r.EtherType, r.Dst)
	}
	return nil
}

func (r Rule) String() string {
	s := ""
	word := func(format string, a ...any) { s += " " + fmt.Sprintf(format, a...) }
	if r.UDPPort != 0 {
		word("udp %d", r.UDPPort)
	}
	if r.Dst.IsValid() {
		word("dst %v", r.Dst)
	}
	if r.VLAN != 0 {
		word("vlan %d", r.VLAN)
	}
	if r.Untagged {
		word("untagged")
	}
	if r.EtherType != 0 {
		word("ethertype %#04x", r.EtherType)
	}
	if r.Local {
		word("local")
	}
	if r.All {
		word("all")
	}
	return s[min(1, len(s)):]
}

// RuleID is the number of a rule of one Program; none is given twice.
type RuleID uint32

// Action is what happens to a frame that a rule decides about.
type Action uint8

const (
	// ToSocket gives it to a socket.
	ToSocket Action = iota
	// ToKernel passes it to the stack: an exception from a wider rule.
	ToKernel
	// Drop ends it.
	Drop
)

// String returns the action in a word, or its number.
func (a Action) String() string {
	if a > Drop {
		return fmt.Sprintf("action(%d)", uint8(a))
	}
	return [...]string{"socket", "kernel", "drop"}[a]
}

// NoSlot in Target.Slots leaves a queue's frames to the kernel's stack.
const NoSlot = ^uint32(0)

// Target says where frames of a rule go. The zero value is the sockets from slot 0 on.
type Target struct {
	Action Action
	// Base is the slot for frames of queue 0; those of queue n go to Base+n.
	Base uint32
	// Slots, if not nil, stands for Base: it lists the slot of each queue. Frames of queues beyond
	// its end go to the kernel's stack.
	Slots []uint32
}

// RuleStatus is a rule and what it did. Frames that it decided about are counted even if there was
// no socket for them.
type RuleStatus struct {
	ID       RuleID
	Rule     Rule
	Target   Target
	Frames   uint64
	Bytes    uint64 // of these frames, from the Ethernet header on
	NoSocket uint64 // of these frames: the queue had no socket, so they went to the kernel
}
