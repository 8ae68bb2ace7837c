package xdp

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
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

const (
	passed     = 2 // XDP_PASS
	redirected = 4 // XDP_REDIRECT
)

// loaded is the program without an interface, with a socket at slot 3 and port 4791 steered to it.
// The test run calls the queue 0, so the group begins at 3.
func loaded(t *testing.T) *Program {
	t.Helper()
	return loadedWith(t, ProgramOptions{Sockets: 8, Rules: 4})
}

func loadedWith(t testing.TB, o ProgramOptions) *Program {
	t.Helper()
	p := &Program{ifname: "test run"}
	err := p.load(o)
	if errors.Is(err, ErrNoCapability) || errors.Is(err, errors.ErrUnsupported) {
		shmtest.Require(t, "xdp", err)
	}
	must(t, err)
	t.Cleanup(func() {
		must(t, errors.Join(p.Close(), p.Close()))
		if err := p.Steer(1, 0); !errors.Is(err, os.ErrClosed) {
			t.Errorf("a closed program steers: %v", err)
		}
	})
	fd := shmtest.Got(unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)).Or(t)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, errors.Join(p.put(3, &Socket{fd: fd}), p.Steer(4791, 3), p.Steer(4792, 4)))
	return p
}

// datagram builds a frame to a port, with tags behind the addresses.
func datagram(t testing.TB, port uint16, tags ...uint16) []byte {
	t.Helper()
	tpl := shmtest.Got(packet.NewTemplate([6]byte{2}, [6]byte{2, 1},
		netip.MustParseAddrPort("192.0.2.1:1000"),
		netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), port))).Or(t)
	frame := make([]byte, 200)
	n := shmtest.Got(tpl.Build(frame, []byte("hello"))).Or(t)
	out := append([]byte{}, frame[:12]...)
	for _, k := range tags {
		out = binary.BigEndian.AppendUint16(out, k)
		out = binary.BigEndian.AppendUint16(out, 100)
	}
	return append(out, frame[12:n]...)
}

// set returns a copy with one byte changed.
func set(b []byte, off int, v byte) []byte {
	out := append([]byte{}, b...)
	out[off] = v
	return out
}

// withOptions widens the IPv4 header by n bytes.
func withOptions(b []byte, n int) []byte {
	out := append(append([]byte{}, b[:34]...), make([]byte, n)...)
	out = append(out, b[34:]...)
	out[14] = 0x40 | byte((20+n)/4)
	return out
}

// overIPv6 returns a datagram over IPv6 to fd00::2 behind extension headers of 8 and 16 bytes in
// turn.
func overIPv6(port uint16, extensions ...byte) []byte {
	b := make([]byte, 14+40)
	b[0], b[6] = 2, 2
	binary.BigEndian.PutUint16(b[12:], 0x86dd)
	b[14], b[38], b[53] = 0x60, 0xfd, 2
	next := 20
	for i, kind := range extensions {
		b[next], next = kind, len(b)
		b = append(b, make([]byte, 8*(i%2+1))...)
		b[next+1] = byte(i % 2)
	}
	b[next] = 17
	b = binary.BigEndian.AppendUint16(append(b, 0, 7), port)
	b = append(b, 0, 8+4, 0, 0, 1, 2, 3, 4)
	b[19] = byte(len(b) - 14 - 40)
	return b
}

// neighbour returns an ICMPv6 message of a type.
func neighbour(kind byte) []byte {
	b := overIPv6(1)
	b[20], b[54] = 58, kind
	return b
}

// steerCase is a frame, what becomes of it, and what counts it.
type steerCase struct {
	name  string
	frame []byte
	want  uint32
	count func(*Counters) *uint64
}

func steerCases(t *testing.T) []steerCase {
	good := datagram(t, 4791)
	arp := set(set(good, 12, 0x08), 13, 0x06)
	redirects := func(c *Counters) *uint64 { return &c.Redirected }
	fragment := func(c *Counters) *uint64 { return &c.Fragment }
	otherPort := func(c *Counters) *uint64 { return &c.OtherPort }
	other := func(c *Counters) *uint64 { return &c.Other }
	short := func(c *Counters) *uint64 { return &c.Short }
	kept := func(c *Counters) *uint64 { return &c.Kept }
	return []steerCase{
		{"steered", good, redirected, redirects},
		{"one tag", datagram(t, 4791, 0x8100), redirected, redirects},
		{"two tags", datagram(t, 4791, 0x88a8, 0x8100), redirected, redirects},
		{"three tags", datagram(t, 4791, 0x8100, 0x8100, 0x8100), passed, other},
		{"options", withOptions(good, 40), redirected, redirects},
		{"options of another port", withOptions(datagram(t, 1), 8), passed, otherPort},
		{"IPv6", overIPv6(4791), redirected, redirects},
		{"IPv6 options", overIPv6(4791, 0, 60, 43, 60), redirected, redirects},
		{"IPv6 six extensions", overIPv6(4791, 0, 60, 60, 60, 60, 60), redirected, redirects},
		{"IPv6 seven extensions", overIPv6(4791, 0, 60, 60, 60, 60, 60, 60), passed, other},
		{"IPv6 late hop-by-hop", overIPv6(4791, 60, 0), passed, other},
		{"IPv6 segments left", set(overIPv6(4791, 43), 57, 1), passed, other},
		{"IPv6 authentication", overIPv6(4791, 51), passed, other},
		{"IPv6 fragment", overIPv6(4791, 44), passed, fragment},
		{"IPv6 fragment behind options", overIPv6(4791, 0, 60, 44), passed, fragment},
		{"IPv6 cut", overIPv6(4791)[:50], passed, short},
		{"IPv6 extension beyond the end", set(overIPv6(4791, 0), 55, 255), passed, short},
		{"other port", datagram(t, 4790), passed, otherPort},
		{"ports swapped", datagram(t, 0xb712), passed, otherPort},
		{"no socket", datagram(t, 4792), passed,
			func(c *Counters) *uint64 { return &c.NoSocket }},
		{"first fragment", set(good, 20, 0x20), passed, fragment},
		{"later fragment", set(set(good, 20, 0x20), 21, 3), passed, fragment},
		{"last fragment", set(set(good, 20, 0), 21, 3), passed, fragment},
		{"don't fragment", set(good, 20, 0x40), redirected, redirects},
		{"TCP", set(good, 23, 6), passed, other},
		{"short IHL", set(good, 14, 0x44), passed, other},
		{"IHL beyond the end", set(good, 14, 0x4f)[:60-20], passed, short},
		{"IP version", set(good, 14, 0x55), passed, other},
		{"ARP", arp, passed, kept},
		{"neighbour", neighbour(135), passed, kept},
		{"IPv6 echo", neighbour(128), passed, other},
		{"Ethernet only", good[:14], passed, short},
		{"half IP", good[:30], passed, short},
		{"half UDP", good[:38], passed, short},
		{"half a tag", datagram(t, 4791, 0x8100)[:16], passed, short},
	}
}

func TestSteer(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := loaded(t)
	for _, c := range steerCases(t) {
		t.Run(c.name, func(t *testing.T) {
			want := shmtest.Got(p.Counters()).Or(t)
			got, out, err := p.objs.Steer.Test(c.frame)
			must(t, err)
			if got != c.want {
				t.Errorf("action %d, want %d", got, c.want)
			}
			if string(out) != string(c.frame) {
				t.Error("the frame was changed")
			}
			*c.count(&want)++
			if have, err := p.Counters(); err != nil || have != want {
				t.Errorf("counters %+v, want %+v, %v", have, want, err)
			}
		})
	}
	c, err := p.Counters()
	if err != nil || c.Seen() != uint64(len(steerCases(t))) {
		t.Errorf("%d frames seen, %v", c.Seen(), err)
	}
}

// TestSteerEveryCut: no prefix of a frame upsets the program, and only whole headers are steered.
func TestSteerEveryCut(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := loaded(t)
	for _, frame := range [][]byte{
		datagram(t, 4791), datagram(t, 4791, 0x88a8, 0x8100), withOptions(datagram(t, 4791), 12),
		overIPv6(4791), overIPv6(4791, 0, 60, 43),
	} {
		headers := len(frame) - 5
		if frame[12] == 0x86 {
			headers = len(frame) - 4
		}
		for n := 14; n <= len(frame); n++ {
			got, _, err := p.objs.Steer.Test(frame[:n])
			must(t, err)
			if (got == redirected) != (n >= headers) {
				t.Errorf("%d of %d bytes: action %d", n, len(frame), got)
			}
		}
	}
}

// BenchmarkSteer has the kernel run the program again and again on one frame.
func BenchmarkSteer(b *testing.B) {
	udp := datagram(b, 53)
	for _, c := range []struct {
		name  string
		rules []Rule
		frame []byte
	}{
		{"no rule", nil, udp},
		{"port", []Rule{{UDPPort: 53}}, udp},
		{"other port", []Rule{{UDPPort: 53}}, datagram(b, 54)},
		{"TCP", []Rule{{UDPPort: 53}}, set(udp, 23, 6)},
		{"IPv6 port", []Rule{{UDPPort: 53}}, overIPv6(53)},
		{"address and port", []Rule{{UDPPort: 53, Dst: netip.MustParsePrefix("192.0.2.2/32")}}, udp},
		{"local port", []Rule{{UDPPort: 53, Local: true}}, udp},
		{"port of another host", []Rule{{UDPPort: 53, Local: true}}, set(udp, 33, 3)},
	} {
		b.Run(c.name, func(b *testing.B) {
			p := loadedWith(b, ProgramOptions{Sockets: 8})
			if err := p.SetLocal(Local{netip.MustParseAddr("192.0.2.2"): {2, 1}}); err != nil {
				b.Fatal(err)
			}
			for _, r := range c.rules {
				add(b, p, r, Target{Base: 3})
			}
			n := max(b.N, 1)
			_, each, err := p.objs.Steer.Benchmark(c.frame, n, nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(each.Nanoseconds()), "ns/frame")
			b.ReportMetric(0, "ns/op")
		})
	}
}
