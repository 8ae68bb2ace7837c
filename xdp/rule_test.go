package xdp_test

import (
	"net/netip"
	"testing"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/xdp"
)

// udpFrame is a datagram from one port to another address and port, tagged if tags are given.
func udpFrame(t testing.TB, dst string, tags ...packet.Tag) []byte {
	t.Helper()
	to := netip.MustParseAddrPort(dst)
	src := netip.MustParseAddr("192.0.2.1")
	if to.Addr().Is6() {
		src = netip.MustParseAddr("fd00::1")
	}
	tpl, err := packet.Path{Src: netip.AddrPortFrom(src, 1000), Dst: to, Tags: tags}.Template()
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, 200)
	n, err := tpl.Build(frame, []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	return frame[:n]
}

// TestRuleSet: rules are tried on bytes, with no device and no privilege.
func TestRuleSet(t *testing.T) {
	t.Parallel()
	prefix := netip.MustParsePrefix
	set := xdp.RuleSet{Rules: []xdp.Rule{
		{All: true},
		{Dst: prefix("192.0.2.99/24")}, // bits behind the prefix do not matter
		{Dst: prefix("::ffff:192.0.2.2/128"), EtherType: 0x0800},
		{UDPPort: 53},
		{UDPPort: 53, VLAN: 7},
		{Untagged: true, UDPPort: 80},
	}}
	arp := make([]byte, 60)
	arp[12], arp[13] = 0x08, 0x06
	for i, c := range []struct {
		frame []byte
		rule  int
		why   xdp.Outcome
	}{
		{udpFrame(t, "198.51.100.1:1"), 0, xdp.OutcomeRule},
		{udpFrame(t, "192.0.2.3:1"), 1, xdp.OutcomeRule},
		{udpFrame(t, "192.0.2.2:1"), 2, xdp.OutcomeRule},
		{udpFrame(t, "192.0.2.2:53"), 3, xdp.OutcomeRule},
		{udpFrame(t, "[fd00::2]:53"), 3, xdp.OutcomeRule},
		{udpFrame(t, "[fd00::2]:53", packet.Tag{TCI: 0xe007}), 4, xdp.OutcomeRule},
		{udpFrame(t, "[fd00::2]:80"), 5, xdp.OutcomeRule},
		{udpFrame(t, "[fd00::2]:80", packet.Tag{TCI: 0xe000}), 5, xdp.OutcomeRule},
		{udpFrame(t, "[fd00::2]:80", packet.Tag{TCI: 9}), 0, xdp.OutcomeRule},
		{udpFrame(t, "192.0.2.2:68"), -1, xdp.OutcomeOtherPort},
		{arp, -1, xdp.OutcomeKept},
		{udpFrame(t, "192.0.2.2:53")[:40], -1, xdp.OutcomeShort},
		{nil, -1, xdp.OutcomeShort},
	} {
		if rule, why := set.Match(c.frame); rule != c.rule || why != c.why {
			t.Errorf("frame %d: rule %d, %v; want %d, %v", i, rule, why, c.rule, c.why)
		}
	}
	none := xdp.RuleSet{}
	if rule, why := none.Match(udpFrame(t, "192.0.2.2:53")); rule != -1 ||
		why != xdp.OutcomeOtherPort {
		t.Errorf("no rules: %d, %v", rule, why)
	}
}

// TestLocal: what is addressed to the interface itself is told from what is not, by rules and by
// who looks at a datagram again.
func TestLocal(t *testing.T) {
	t.Parallel()
	own, group := [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{1, 0, 0x5e, 1, 2, 3}
	group6 := [6]byte{0x33, 0x33, 0, 0, 0, 9}
	addr := netip.MustParseAddr
	local := xdp.Local{addr("192.0.2.2"): own, addr("fd00::2"): own, addr("239.1.2.3"): group,
		addr("ff15::9"): group6}
	set := xdp.RuleSet{Rules: []xdp.Rule{{UDPPort: 53, Local: true}}, Local: local}
	for _, c := range []struct {
		mac  [6]byte
		dst  string
		tags []packet.Tag
		want bool
	}{
		{own, "192.0.2.2:53", nil, true},
		{own, "[fd00::2]:53", nil, true},
		{group, "239.1.2.3:53", nil, true},
		{group6, "[ff15::9]:53", nil, true},
		{own, "192.0.2.2:53", []packet.Tag{{TCI: 0xe000}}, true},
		{own, "192.0.2.2:53", []packet.Tag{{TCI: 7}}, false},
		{own, "192.0.2.2:53", []packet.Tag{{TCI: 0}, {TCI: 7}}, false},
		{own, "192.0.2.2:53", []packet.Tag{{TCI: 0}, {TCI: 0}}, false},
		{own, "192.0.2.3:53", nil, false},
		{own, "[fd00::3]:53", nil, false},
		{own, "239.1.2.3:53", nil, false},
		{own, "192.0.2.255:53", nil, false},
		{[6]byte{2, 0, 0, 0, 0, 2}, "192.0.2.2:53", nil, false},
		{[6]byte{255, 255, 255, 255, 255, 255}, "192.0.2.2:53", nil, false},
		{[6]byte{255, 255, 255, 255, 255, 255}, "192.0.2.255:53", nil, false},
		{[6]byte{255, 255, 255, 255, 255, 255}, "239.1.2.3:53", nil, false},
		{[6]byte{1, 0, 0x5e, 1, 2, 4}, "239.1.2.4:53", nil, false},
		{group, "239.129.2.3:53", nil, false}, // another group of that hardware address
	} {
		frame := udpFrame(t, c.dst, c.tags...)
		copy(frame, c.mac[:])
		var d packet.Datagram
		if err := packet.Parse(frame, &d); err != nil {
			t.Fatal(err)
		}
		if _, why := set.Match(frame); (why == xdp.OutcomeRule) != c.want || d.Own(local) != c.want {
			t.Errorf("%x %s %v: %v, has %v", c.mac, c.dst, c.tags, why, d.Own(local))
		}
	}
}

func TestRuleNames(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]xdp.Rule{
		"udp 53 dst 192.0.2.0/24 vlan 7 ethertype 0x0800": {UDPPort: 53, VLAN: 7, EtherType: 0x0800,
			Dst: netip.MustParsePrefix("192.0.2.0/24")},
		"untagged":     {Untagged: true},
		"udp 53 local": {UDPPort: 53, Local: true},
		"all":          {All: true},
		"":             {},
	} {
		if got := r.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if s := xdp.Drop.String() + xdp.OutcomeFragment.String() + xdp.Action(9).String() +
		xdp.Outcome(9).String(); s != "dropfragmentaction(9)outcome(9)" {
		t.Error(s)
	}
}

// FuzzRuleAndParse: a datagram that Parse finds is one that a rule for its port, its address and
// its VLAN takes, and both agree on what is local.
func FuzzRuleAndParse(f *testing.F) {
	f.Add(udpFrame(f, "192.0.2.2:53"))
	f.Add(udpFrame(f, "[fd00::2]:53", packet.Tag{TCI: 7}))
	f.Add(udpFrame(f, "192.0.2.2:53", packet.Tag{Kind: 0x88a8, TCI: 7}, packet.Tag{TCI: 8}))
	f.Fuzz(func(t *testing.T, frame []byte) {
		var d packet.Datagram
		_, why := xdp.RuleSet{Rules: []xdp.Rule{{All: true}}}.Match(frame)
		if packet.Parse(frame, &d) != nil || d.Dst.Port() == 0 {
			return
		}
		dst := d.Dst.Addr()
		r := xdp.Rule{UDPPort: d.Dst.Port(), Dst: netip.PrefixFrom(dst, dst.BitLen()),
			VLAN: d.VLAN & 0xfff, Untagged: d.VLAN&0xfff == 0}
		if !alone(r, frame) {
			t.Errorf("%v does not match %x (%v)", r, frame, why)
		}
		local := xdp.Local{dst: d.DstMAC}
		_, why = xdp.RuleSet{Rules: []xdp.Rule{{Local: true}}, Local: local}.Match(frame)
		if want := d.Own(local); want != (why == xdp.OutcomeRule) && d.Dst.Port() != 68 &&
			d.Dst.Port() != 546 {
			t.Errorf("%x: local %v, by rule %v", frame, want, why)
		}
		r.UDPPort ^= 1
		if r.UDPPort != 0 && alone(r, frame) {
			t.Errorf("%v matches %x", r, frame)
		}
	})
}

// alone reports whether a rule would decide about a frame if there were no other.
func alone(r xdp.Rule, frame []byte) bool {
	_, why := xdp.RuleSet{Rules: []xdp.Rule{r}}.Match(frame)
	return why == xdp.OutcomeRule
}
