package xdp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/shmring/shmring/internal/packet"
)

// What the steering program does, as a model that tests compare it with.

// Outcome says who decides about a frame, and why.
type Outcome uint8

const (
	OutcomeRule      Outcome = iota // a rule
	OutcomeOtherPort                // no rule matches this UDP datagram: the kernel's
	OutcomeFragment                 // fragment: the kernel's
	OutcomeShort                    // ends inside a header: the kernel's
	OutcomeOther                    // anything else that no rule matches: the kernel's
	OutcomeKept                     // the host needs it to stay reachable: the kernel's
)

func (o Outcome) String() string {
	if o > OutcomeKept {
		return fmt.Sprintf("outcome(%d)", uint8(o))
	}
	return [...]string{"rule", "other port", "fragment", "short", "other", "kept"}[o]
}

// RuleSet decides about frames as the program in the kernel does, so that rules can be tried on
// bytes: no device and no privilege is needed.
type RuleSet struct {
	Rules    []Rule
	SteerSSH bool  // as in ProgramOptions
	Local    Local // as Program.SetLocal was told
}

// Match returns the index of the rule that decides about the frame, or -1 and why the kernel gets
// it.
func (s RuleSet) Match(frame []byte) (rule int, o Outcome) {
	v := look(frame, s.SteerSSH)
	if v.kernel != OutcomeRule {
		return -1, v.kernel
	}
	rule = -1
	for i, r := range s.Rules {
		r = r.normal()
		if v.matches(r, s.Local) && (rule < 0 || moreSpecial(r, s.Rules[rule].normal()) > 0) {
			rule = i
		}
	}
	if rule < 0 {
		return -1, v.miss
	}
	return rule, OutcomeRule
}

// has reports whether an address is among them, with the hardware address that belongs to it.
func (l Local) has(a netip.Addr, mac [6]byte) bool {
	m, ok := l[a]
	return ok && m == mac
}

func moreSpecial(a, b Rule) int {
	return cmp.Or(cmp.Compare(a.fields(), b.fields()), cmp.Compare(a.Dst.Bits(), b.Dst.Bits()))
}

// view is what rules see of a frame.
type view struct {
	etherType uint16
	mac       [6]byte // of the destination
	vlan      uint16
	tags      int
	dst       netip.Addr // invalid if it is not IP
	udp       bool
	port      uint16
	portOnly  bool    // only rules that name the port may have it
	kernel    Outcome // if not OutcomeRule: why the kernel gets it before rules are looked at
	miss      Outcome // why the kernel gets it if no rule matches
}

func (v view) matches(r Rule, l Local) bool {
	return (r.UDPPort == 0 || v.udp && v.port == r.UDPPort) &&
		(r.UDPPort != 0 || !v.portOnly) &&
		(!r.Dst.IsValid() || r.Dst.Contains(v.dst)) &&
		(r.VLAN == 0 || v.vlan == r.VLAN) &&
		(!r.Untagged || v.vlan == 0) &&
		(r.EtherType == 0 || v.etherType == r.EtherType) &&
		(!r.Local || v.tags < maxTags && v.vlan == 0 && l.has(v.dst, v.mac))
}

// extensionHeaders are those IPv6 headers behind which there may be a datagram.
var extensionHeaders = []byte{0, 43, 60}

const (
	typeVLAN = 0x8100
	typeQinQ = 0x88a8
	maxTags  = 2
	vlanID   = 0xfff

	protoIGMP     = 2
	protoTCP      = 6
	protoUDP      = 17
	protoFragment = 44
	protoICMPv6   = 58
	portDHCPv4    = 68
	portDHCPv6    = 546
)

func look(b []byte, steerSSH bool) (v view) {
	v.miss = OutcomeOther
	if len(b) < packet.EthernetBytes {
		v.kernel = OutcomeShort
		return v
	}
	copy(v.mac[:], b)
	v.etherType, b = be16(b[12:]), b[packet.EthernetBytes:]
	for i := 0; i < maxTags && (v.etherType == typeVLAN || v.etherType == typeQinQ); i++ {
		if len(b) < packet.VLANBytes {
			v.kernel = OutcomeShort
			return v
		}
		if i == 0 {
			v.vlan = be16(b) & vlanID
		}
		v.tags++
		v.etherType, b = be16(b[2:]), b[packet.VLANBytes:]
	}
	switch v.etherType {
	case typeARP:
		v.kernel = OutcomeKept
	case typeIPv4:
		v.kernel = v.ipv4(b, steerSSH)
	case typeIPv6:
		v.kernel = v.ipv6(b, steerSSH)
	}
	return v
}

func be16(b []byte) uint16 { return uint16(b[0])<<8 | uint16(b[1]) }

func (v *view) ipv4(b []byte, steerSSH bool) Outcome {
	if len(b) < packet.IPv4Bytes {
		return OutcomeShort
	}
	header := int(b[0]&15) * 4
	if b[0]>>4 != 4 || header < packet.IPv4Bytes {
		return OutcomeOther
	}
	if be16(b[6:])&0x3fff != 0 {
		return OutcomeFragment
	}
	v.dst = netip.AddrFrom4([4]byte(b[16:20]))
	return v.transport(b[9], b[min(header, len(b)):], steerSSH)
}

func (v *view) ipv6(b []byte, steerSSH bool) Outcome {
	if len(b) < packet.IPv6Bytes {
		return OutcomeShort
	}
	if b[0]>>4 != 6 {
		return OutcomeOther
	}
	v.dst = netip.AddrFrom16([16]byte(b[24:40]))
	proto, b := b[6], b[packet.IPv6Bytes:]
	for i := range packet.MaxExtensions + 1 {
		if proto == protoFragment {
			return OutcomeFragment
		}
		if !slices.Contains(extensionHeaders, proto) {
			return v.transport(proto, b, steerSSH)
		}
		if len(b) < 8 {
			return OutcomeShort
		}
		if proto == 0 && i > 0 || proto == 43 && b[3] != 0 {
			return OutcomeOther
		}
		proto, b = b[0], b[min(8*(int(b[1])+1), len(b)):]
	}
	return OutcomeOther
}

// transport looks at what is behind the IP header.
func (v *view) transport(proto byte, b []byte, steerSSH bool) Outcome {
	need := map[byte]int{protoUDP: packet.UDPBytes, protoTCP: 4, protoICMPv6: 8}[proto]
	if len(b) < need {
		return OutcomeShort
	}
	kept := false
	switch proto {
	case protoUDP:
		v.udp, v.port, v.miss = true, be16(b[2:]), OutcomeOtherPort
		v.portOnly = v.port == portDHCPv4 || v.port == portDHCPv6
	case protoTCP:
		kept = be16(b[2:]) == portSSH && !steerSSH
	case protoIGMP:
		kept = true
	case protoICMPv6:
		kept = b[0] >= 130 && b[0] <= 137 || b[0] == 143
	}
	if kept {
		return OutcomeKept
	}
	return OutcomeRule
}
