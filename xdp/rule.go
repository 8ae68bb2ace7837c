package xdp

import (
	"fmt"
	"net/netip"
)

// AttachMode says where in the kernel the steering program runs.
type AttachMode uint8

const (
	// AttachAuto tries native mode and takes generic mode if the driver refuses. As the mode of a
	// program that is attached it stands for one that this package does not know.
	AttachAuto AttachMode = iota
	// AttachNative runs in the driver.
	AttachNative
	// AttachGeneric runs in the stack, with any driver.
	AttachGeneric
)

// String returns the mode in a word, or its number.
func (m AttachMode) String() string {
	switch m {
	case AttachAuto:
		return "auto"
	case AttachNative:
		return "native"
	case AttachGeneric:
		return "generic"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// ProgramInfo is an XDP program that is attached to an interface.
type ProgramInfo struct {
	ID   uint32 // as "bpftool prog" and "ip link" show it; 0 if the kernel does not say
	Name string // as its maker called it, cut to 15 bytes; empty when this process may not ask
	Mode AttachMode
	// Refused says of a [Program] why native mode was not granted; nil if it was, or was not asked
	// for.
	Refused error
}

// text is number, name and mode, as in `7 "steer" (native)`.
func (i ProgramInfo) text() string {
	s := fmt.Sprintf("%d", i.ID)
	if i.Name != "" {
		s += fmt.Sprintf(" %q", i.Name)
	}
	return s + fmt.Sprintf(" (%v)", i.Mode)
}

// ProgramOptions say how to attach the steering program. The zero value is useful.
type ProgramOptions struct {
	Mode AttachMode
	// Sockets is the number of slots for sockets: one for each queue and group of rules. Zero
	// stands for 64.
	Sockets uint32
	// Rules is the number of rules that there may be at a time. Zero stands for 1024.
	Rules uint32
	// MultiBuffer says that frames may take several buffers (BPF_F_XDP_HAS_FRAGS), which drivers
	// ask for beyond some MTU. Sockets without multi-buffer support drop such frames.
	MultiBuffer bool
	// SteerSSH lets rules take TCP to port 22, which is the kernel's otherwise, so that a rule that
	// is too wide locks nobody out.
	SteerSSH bool
}

// Counters says what the steering program did with the frames that it saw.
type Counters struct {
	Redirected uint64 // given to a socket
	NoSocket   uint64 // for a socket by rule, but the queue had none: passed to the kernel
	OtherPort  uint64 // UDP that no rule matched: passed
	Fragment   uint64 // fragment of a datagram: passed
	Short      uint64 // ends inside a header: passed
	Other      uint64 // anything else that no rule matched: passed
	Kept       uint64 // ARP and whatever else [Rule] says the kernel needs: passed
	RulePassed uint64 // passed by a rule
	Dropped    uint64 // dropped by a rule
}

// counterOrder lists the fields in the order of the program's counts.
func (c *Counters) counterOrder() []*uint64 {
	return []*uint64{&c.Redirected, &c.NoSocket, &c.OtherPort, &c.Fragment, &c.Short, &c.Other,
		&c.Kept, &c.RulePassed, &c.Dropped}
}

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

// Target says where frames of a rule go. The zero value is the sockets from slot 0 on.
type Target struct {
	Action Action
	// Base is the slot for frames of queue 0; those of queue n go to Base+n.
	Base uint32
}

func (t Target) check() error {
	if t.Action > Drop {
		return fmt.Errorf("%w: target %+v", ErrRule, t)
	}
	return nil
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

// The maps of the program find a rule by exact keys, one look for each combination of fields that
// any rule names. A destination becomes the number of a net first: that of the longest prefix that
// any rule names. Since the frame may be for a rule with a shorter prefix, and other fields, each
// net has entries for the rules of all prefixes that contain it too.

// ruleKey is a key of the map rules.
type ruleKey struct {
	Net       uint32
	Port      [2]byte // as in a packet
	EtherType [2]byte
	VLAN      uint16
	Fields    uint16
}

// ruleValue is a value of the map rules.
type ruleValue struct{ Rule, Action, Base uint32 }

// netKey is a key of the map nets.
type netKey struct {
	PrefixLen uint32 // with the bits of the family
	Family    uint32
	Addr      [16]byte
}

// hit is a value of the map hits.
type hit struct{ Frames, Bytes, NoSocket uint64 }

// ruleTable is what the maps hold.
type ruleTable struct {
	entries map[ruleKey]ruleValue
	nets    map[netip.Prefix]uint32
	kinds   uint32 // a bit for each combination of fields
}

func newRuleTable() ruleTable {
	return ruleTable{entries: map[ruleKey]ruleValue{}, nets: map[netip.Prefix]uint32{}}
}

// installed is a rule and where its parts are in the maps.
type installed struct {
	id     RuleID
	rule   Rule // normal
	target Target
	index  uint32 // in hits
}

func (r *installed) value() ruleValue {
	return ruleValue{Rule: r.index, Action: uint32(r.target.Action), Base: r.target.Base}
}

func (r Rule) key(net uint32) ruleKey {
	return ruleKey{Net: net, Port: portKey(r.UDPPort), EtherType: portKey(r.EtherType),
		VLAN: r.VLAN, Fields: uint16(r.fields())}
}

// compile makes the table of a set of rules. A net keeps the number that it has in old, and a new
// one gets the next; numbers are not used twice, since a frame on its way may still carry one.
func compile(rules []*installed, old map[netip.Prefix]uint32, next *uint32) ruleTable {
	t := newRuleTable()
	byPrefix := map[netip.Prefix][]*installed{}
	var lengths [129]bool
	for _, r := range rules {
		t.kinds |= 1 << r.rule.fields()
		if !r.rule.Dst.IsValid() {
			t.entries[r.rule.key(0)] = r.value()
			continue
		}
		lengths[r.rule.Dst.Bits()] = true
		byPrefix[r.rule.Dst] = append(byPrefix[r.rule.Dst], r)
	}
	for prefix := range byPrefix {
		id, known := old[prefix]
		if !known {
			*next++
			id = *next
		}
		t.nets[prefix] = id
		for bits := prefix.Bits(); bits >= 0; bits-- {
			if !lengths[bits] {
				continue
			}
			for _, r := range byPrefix[netip.PrefixFrom(prefix.Addr(), bits).Masked()] {
				if _, taken := t.entries[r.rule.key(id)]; !taken {
					t.entries[r.rule.key(id)] = r.value()
				}
			}
		}
	}
	return t
}

// portKey is a port or type as it stands in a packet.
func portKey(n uint16) [2]byte { return [2]byte{byte(n >> 8), byte(n)} }

func keyOf(p netip.Prefix) netKey {
	k := netKey{PrefixLen: 32 + uint32(p.Bits()), Family: 6}
	if p.Addr().Is4() {
		k.Family = 4
		a := p.Addr().As4()
		copy(k.Addr[:], a[:])
		return k
	}
	k.Addr = p.Addr().As16()
	return k
}
