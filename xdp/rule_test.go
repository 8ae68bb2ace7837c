package xdp_test

import (
	"net/netip"
	"testing"

	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/packet"
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

func TestRuleNames(t *testing.T) {
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
		if !r.Match(frame) {
			t.Errorf("%v does not match %x (%v)", r, frame, why)
		}
		local := xdp.Local{dst: d.DstMAC}
		_, why = xdp.RuleSet{Rules: []xdp.Rule{{Local: true}}, Local: local}.Match(frame)
		if want := local.Has(&d); want != (why == xdp.OutcomeRule) && d.Dst.Port() != 68 &&
			d.Dst.Port() != 546 {
			t.Errorf("%x: local %v, by rule %v", frame, want, why)
		}
		r.UDPPort ^= 1
		if r.UDPPort != 0 && r.Match(frame) {
			t.Errorf("%v matches %x", r, frame)
		}
	})
}
