package xdp

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
)

// decide runs the program on a frame and returns its action, the rule that counted the frame, and
// what else was counted.
func decide(t testing.TB, p *Program, frame []byte) (action uint32, rule RuleID, c Counters) {
	t.Helper()
	count := func() (map[RuleID]uint64, Counters) {
		rules, err := p.Rules()
		c, err2 := p.Counters()
		must(t, errors.Join(err, err2))
		n := map[RuleID]uint64{}
		for _, r := range rules {
			n[r.ID] = r.Frames
		}
		return n, c
	}
	hits, before := count()
	action, out, err := p.objs.Steer.Test(frame)
	if err != nil || string(out) != string(frame) {
		t.Fatalf("the frame was changed: %v", err)
	}
	after, c := count()
	for id := range after {
		switch after[id] - hits[id] {
		case 0:
		case 1:
			if rule != 0 {
				t.Fatalf("two rules count one frame: %d and %d", rule, id)
			}
			rule = id
		default:
			t.Fatalf("rule %d counts a frame %d times", id, after[id]-hits[id])
		}
	}
	old := before.counterOrder()
	for i, n := range c.counterOrder() {
		*n -= *old[i]
	}
	if c.Seen() != 1 {
		t.Fatalf("counters grew by %+v", c)
	}
	return action, rule, c
}

func add(t testing.TB, p *Program, r Rule, to Target) RuleID {
	t.Helper()
	return shmtest.Got(p.AddRule(r, to)).Or(t)
}

// empty is a program without rules, with a socket at slot 3.
func empty(t *testing.T) *Program {
	t.Helper()
	p := loadedWith(t, ProgramOptions{Sockets: 8, Rules: 64})
	must(t, errors.Join(p.Unsteer(4791), p.Unsteer(4792)))
	return p
}

// TestRuleKinds: each kind of rule alone, with a frame that it wants and one that it does not.
func TestRuleKinds(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := empty(t)
	four, six := datagram(t, 53), overIPv6(53)
	vlan, qinq := datagram(t, 53, 0x8100), datagram(t, 53, 0x88a8, 0x8100)
	loop := set(set(four, 12, 0x90), 13, 0)
	tcp, other := set(four, 23, 6), datagram(t, 54)
	prefix := netip.MustParsePrefix
	local := Local{netip.MustParseAddr("192.0.2.2"): {2, 1}, netip.MustParseAddr("fd00::2"): {2}}
	must(t, errors.Join(p.SetLocal(Local{netip.MustParseAddr("192.0.2.9"): {2, 1}}),
		p.SetLocal(local)))
	for _, c := range []struct {
		rule Rule
		yes  [][]byte
		no   [][]byte
	}{
		{Rule{UDPPort: 53}, [][]byte{four, six, vlan, qinq}, [][]byte{other, tcp, loop}},
		{Rule{Dst: prefix("192.0.2.2/32")}, [][]byte{four, tcp, vlan},
			[][]byte{six, loop, set(four, 33, 3)}},
		{Rule{Dst: prefix("192.0.0.0/14")}, [][]byte{four, set(four, 33, 3), set(four, 31, 3)},
			[][]byte{six, set(four, 31, 4), set(four, 30, 193)}},
		{Rule{Dst: prefix("fd00::2/128")}, [][]byte{six, overIPv6(1, 0, 60)},
			[][]byte{four, set(six, 53, 3)}},
		{Rule{Dst: prefix("fc00::/7")}, [][]byte{six, set(six, 40, 9)}, [][]byte{four, set(six, 38, 9)}},
		{Rule{Dst: prefix("::/0")}, [][]byte{six}, [][]byte{four, loop}},
		{Rule{Dst: prefix("0.0.0.0/0")}, [][]byte{four}, [][]byte{six, loop}},
		{Rule{VLAN: 100}, [][]byte{vlan, qinq, set(vlan, 14, 0x60)}, // the upper bits are the priority
			[][]byte{four, set(vlan, 15, 101)}},
		{Rule{Untagged: true}, [][]byte{four, six, loop, set(vlan, 15, 0)}, [][]byte{vlan, qinq}},
		{Rule{EtherType: 0x9000}, [][]byte{loop}, [][]byte{four, six, vlan}},
		{Rule{Local: true}, [][]byte{four, six, tcp, set(vlan, 15, 0)},
			[][]byte{vlan, qinq, set(qinq, 15, 0), loop, set(four, 5, 1), set(four, 0, 3),
				set(four, 33, 9), set(six, 53, 9), set(six, 4, 9)}},
		{Rule{UDPPort: 53, Local: true}, [][]byte{four, six}, [][]byte{vlan, tcp, other}},
		{Rule{UDPPort: 53, Local: true, Dst: prefix("192.0.2.0/24"), EtherType: 0x0800},
			[][]byte{four}, [][]byte{six, vlan, other, set(four, 3, 1)}},
		{Rule{EtherType: 0x86dd}, [][]byte{six}, [][]byte{four, loop}},
		{Rule{UDPPort: 53, VLAN: 100, EtherType: 0x0800, Dst: prefix("192.0.2.0/24")},
			[][]byte{vlan, qinq}, [][]byte{four, six, other, set(vlan, 36, 3), set(vlan, 27, 6)}},
		{Rule{All: true}, [][]byte{four, six, vlan, qinq, loop, tcp, other}, nil},
	} {
		id := add(t, p, c.rule, Target{Base: 3})
		for i, frame := range slices.Concat(c.yes, c.no) {
			want := uint32(redirected)
			if i >= len(c.yes) {
				want = passed
			}
			got, by, _ := decide(t, p, frame)
			if got != want || (by == id) != (want == redirected) {
				t.Errorf("%v: frame %d: action %d by rule %d", c.rule, i, got, by)
			}
			_, o := RuleSet{Rules: []Rule{c.rule}, Local: local}.Match(frame)
			if (o == OutcomeRule) != (want == redirected) {
				t.Errorf("%v: frame %d: the model differs", c.rule, i)
			}
		}
		must(t, p.RemoveRule(id))
		for i, frame := range c.yes {
			if got, _, _ := decide(t, p, frame); got != passed {
				t.Errorf("%v: frame %d is still taken", c.rule, i)
			}
		}
	}
	if len(p.table.entries)+len(p.table.nets) != 0 || p.table.kinds != 0 {
		t.Errorf("left in the maps: %+v", p.table)
	}
}

func TestMostSpecialRuleDecides(t *testing.T) {
	t.Parallel()
	p := empty(t)
	prefix := netip.MustParsePrefix
	// From the least to the most special one; the frame matches all.
	rules := []Rule{
		{All: true}, {EtherType: 0x0800}, {VLAN: 100}, {VLAN: 100, EtherType: 0x0800},
		{Dst: prefix("192.0.0.0/8")}, {Dst: prefix("192.0.2.0/24")}, {Dst: prefix("192.0.2.2/32")},
		{Dst: prefix("192.0.0.0/8"), EtherType: 0x0800}, {Dst: prefix("192.0.0.0/8"), VLAN: 100},
		{UDPPort: 53}, {UDPPort: 53, EtherType: 0x0800}, {UDPPort: 53, VLAN: 100},
		{UDPPort: 53, Dst: prefix("0.0.0.0/0")}, {UDPPort: 53, Dst: prefix("192.0.2.0/25")},
		{UDPPort: 53, Dst: prefix("0.0.0.0/0"), VLAN: 100},
	}
	frame := datagram(t, 53, 0x8100)
	ids := map[int]RuleID{}
	for _, i := range rand.New(rand.NewPCG(3, 4)).Perm(len(rules)) {
		ids[i] = add(t, p, rules[i], Target{Base: 3})
		best := slices.Max(slices.Collect(maps.Keys(ids)))
		if _, by, _ := decide(t, p, frame); by != ids[best] {
			t.Errorf("rule %d decides, want %d (%v)", by, ids[best], rules[best])
		}
	}
	for best := len(rules) - 1; best >= 0; best-- {
		if _, by, _ := decide(t, p, frame); by != ids[best] {
			t.Errorf("rule %d decides, want %d (%v)", by, ids[best], rules[best])
		}
		must(t, p.RemoveRule(ids[best]))
	}
}

// TestKeepManagement: a rule for everything locks nobody out.
func TestKeepManagement(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	arp := set(set(datagram(t, 1), 12, 0x08), 13, 0x06)
	ssh := set(set(datagram(t, 22), 23, 6), 34, 99)
	https := set(ssh, 37, 44)
	p := empty(t)
	all := add(t, p, Rule{All: true}, Target{Base: 3})
	for name, c := range map[string]struct {
		frame []byte
		kept  bool
	}{
		"ARP": {arp, true}, "neighbour solicitation": {neighbour(135), true},
		"router advertisement": {neighbour(134), true}, "listener report": {neighbour(143), true},
		"IGMP": {set(ssh, 23, 2), true}, "SSH": {ssh, true}, "other TCP": {https, false},
		"echo": {neighbour(128), false}, "DHCP": {datagram(t, 68), false},
		"DHCPv6": {overIPv6(546), false}, "UDP": {datagram(t, 67), false},
	} {
		action, by, counted := decide(t, p, c.frame)
		dhcp := name == "DHCP" || name == "DHCPv6" // no rule's, rather than kept from all rules
		if c.kept != (counted.Kept == 1) || (by == all) == (c.kept || dhcp) ||
			(action == passed) != (c.kept || dhcp) {
			t.Errorf("%s: action %d by rule %d, %+v", name, action, by, counted)
		}
	}
	dhcp := add(t, p, Rule{UDPPort: 68}, Target{Base: 3})
	if _, by, _ := decide(t, p, datagram(t, 68)); by != dhcp {
		t.Errorf("DHCP by rule %d, want the one that names its port", by)
	}
	open := loadedWith(t, ProgramOptions{Sockets: 8, SteerSSH: true})
	id := add(t, open, Rule{All: true}, Target{Base: 3})
	if action, by, _ := decide(t, open, ssh); action != redirected || by != id {
		t.Errorf("SSH that may be steered: action %d by rule %d", action, by)
	}
	if action, _, _ := decide(t, open, arp); action != passed {
		t.Errorf("ARP: action %d", action)
	}
}

func TestTargets(t *testing.T) {
	t.Parallel()
	p := empty(t)
	frame := datagram(t, 53)
	for i, c := range []struct {
		to       Target
		action   uint32
		noSocket uint64
	}{
		{Target{Action: Drop}, 1, 0},
		{Target{Action: ToKernel}, passed, 0},
		{Target{Base: 3}, redirected, 0},
		{Target{Base: 2}, passed, 1},
		{Target{Base: ^uint32(0)}, passed, 1},
	} {
		id := add(t, p, Rule{UDPPort: 53}, c.to)
		action, by, _ := decide(t, p, frame)
		s, err := p.RuleStats(id)
		if err != nil || action != c.action || by != id || s.NoSocket != c.noSocket ||
			s.Bytes != uint64(len(frame)) || s.Frames != 1 || s.Target != c.to {
			t.Errorf("%d: action %d by rule %d, %+v, %v", i, action, by, s, err)
		}
		must(t, p.RemoveRule(id))
	}
}

func TestRulesRefused(t *testing.T) {
	t.Parallel()
	p := empty(t)
	prefix := netip.MustParsePrefix
	id := add(t, p, Rule{Dst: prefix("192.0.2.7/24")}, Target{})
	for i, c := range []struct {
		rule Rule
		to   Target
		want error
	}{
		{Rule{}, Target{}, ErrRule},
		{Rule{All: true, UDPPort: 1}, Target{}, ErrRule},
		{Rule{VLAN: 4095}, Target{}, ErrRule},
		{Rule{VLAN: 1, Untagged: true}, Target{}, ErrRule},
		{Rule{VLAN: 1, Local: true}, Target{}, ErrRule},
		{Rule{EtherType: 0x88b5, Local: true}, Target{}, ErrRule},
		{Rule{EtherType: 0x806}, Target{}, ErrRule},
		{Rule{EtherType: 0x5ff}, Target{}, ErrRule},
		{Rule{EtherType: 0x88b5, UDPPort: 1}, Target{}, ErrRule},
		{Rule{EtherType: 0x86dd, Dst: prefix("192.0.2.0/24")}, Target{}, ErrRule},
		{Rule{UDPPort: 1}, Target{Action: 3}, ErrRule},
		{Rule{Dst: prefix("::ffff:192.0.2.0/120")}, Target{}, ErrRuleExists},
	} {
		if _, err := p.AddRule(c.rule, c.to); !errors.Is(err, c.want) {
			t.Errorf("%d: %v, want %v", i, err, c.want)
		}
	}
	if err := p.RemoveRule(id + 100); !errors.Is(err, ErrNoRule) || !errors.Is(err, unix.ENOENT) {
		t.Error(err)
	}
	if rules, err := p.Rules(); err != nil || len(rules) != 1 ||
		rules[0].Rule.Dst != prefix("192.0.2.0/24") {
		t.Errorf("rules: %+v, %v", rules, err)
	}
	must(t, errors.Join(p.RemoveRule(id)))
	again := add(t, p, Rule{Dst: prefix("192.0.2.7/24")}, Target{})
	if again == id {
		t.Error("a number was given twice")
	}
}

// TestRulesAreBounded: what does not fit is refused, and what was there still works.
func TestRulesAreBounded(t *testing.T) {
	t.Parallel()
	p := loadedWith(t, ProgramOptions{Sockets: 8, Rules: 4}) // it has two
	fd := shmtest.Got(unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)).Or(t)
	defer unix.Close(fd)
	if err := p.put(8, &Socket{fd: fd}); !errors.Is(err, unix.E2BIG) {
		t.Errorf("slot 8 of 8: %v", err)
	}
	if err := p.remove(7, nil); err != nil {
		t.Errorf("an empty slot: %v", err)
	}
	must(t, errors.Join(p.Steer(1, 0), p.Steer(2, 3)))
	if err := p.Steer(3, 0); !errors.Is(err, ErrRulesFull) || !errors.Is(err, unix.E2BIG) {
		t.Errorf("rule 5 of 4: %v", err)
	}
	if action, _, _ := decide(t, p, datagram(t, 2)); action != redirected {
		t.Errorf("action %d", action)
	}
	must(t, p.Unsteer(1))
	if err := p.Steer(3, 0); err != nil {
		t.Errorf("the room of a rule that was removed: %v", err)
	}
}

// TestLocalsAreBounded: more addresses than there is room for are refused, what is no more is not
// local any longer even then, and a closed program is told nothing.
func TestLocalsAreBounded(t *testing.T) {
	t.Parallel()
	p := empty(t)
	id := add(t, p, Rule{Local: true}, Target{Base: 3})
	must(t, p.SetLocal(Local{netip.MustParseAddr("192.0.2.2"): {2, 1}}))
	if _, by, _ := decide(t, p, datagram(t, 1)); by != id {
		t.Errorf("by rule %d", by)
	}
	many := Local{}
	for a := netip.MustParseAddr("10.0.0.0"); len(many) <= int(p.objs.Locals.MaxEntries()); {
		many[a] = [6]byte{2, 1}
		a = a.Next()
	}
	if err := p.SetLocal(many); !errors.Is(err, ErrRulesFull) {
		t.Errorf("%d addresses: %v", len(many), err)
	}
	if _, by, _ := decide(t, p, datagram(t, 1)); by != 0 {
		t.Errorf("an address that is gone: by rule %d", by)
	}
	if err := p.SetLocal(nil); err != nil || len(p.local) != 0 {
		t.Errorf("%d left, %v", len(p.local), err)
	}
	// Anybody joins groups: they leave room for the addresses.
	many = Local{}
	for a := netip.MustParseAddr("239.0.0.0"); len(many) <= int(p.objs.Locals.MaxEntries()); {
		many[a] = [6]byte{1, 0, 0x5e}
		a = a.Next()
	}
	if err := p.SetLocal(many); !errors.Is(err, ErrRulesFull) {
		t.Errorf("%d groups: %v", len(many), err)
	}
	many[netip.MustParseAddr("192.0.2.2")] = [6]byte{2, 1}
	if err := p.SetLocal(many); !errors.Is(err, ErrRulesFull) {
		t.Errorf("%d groups and an address: %v", len(many)-1, err)
	}
	if _, by, _ := decide(t, p, datagram(t, 1)); by != id {
		t.Errorf("an address beside too many groups: by rule %d", by)
	}
}

// TestRulesRollBack: a rule whose entries do not all fit leaves nothing behind.
func TestRulesRollBack(t *testing.T) {
	t.Parallel()
	p := empty(t)
	for i := range 40 { // each net gets an entry for each of these
		add(t, p, Rule{Dst: netip.MustParsePrefix("10.0.0.0/8"), UDPPort: uint16(i + 1)}, Target{})
	}
	if err := p.objs.Nets.Close(); err != nil { // entries can be written, nets cannot
		t.Fatal(err)
	}
	entries := maps.Clone(p.table.entries)
	if _, err := p.AddRule(Rule{Dst: netip.MustParsePrefix("10.1.0.0/16")}, Target{}); err == nil {
		t.Fatal("a rule was added without its net")
	}
	if rules, err := p.Rules(); err != nil || len(rules) != 40 ||
		!maps.Equal(entries, p.table.entries) || len(p.table.nets) != 1 {
		t.Errorf("%d rules, %d of %d entries, %v", len(rules), len(p.table.entries), len(entries),
			err)
	}
}

func TestClosedProgramHasNoRules(t *testing.T) {
	t.Parallel()
	p := loaded(t)
	must(t, p.Close())
	_, err := p.AddRule(Rule{UDPPort: 1}, Target{})
	_, err2 := p.Rules()
	_, err3 := p.Counters()
	for _, err := range []error{err, err2, err3, p.RemoveRule(1), p.SetLocal(nil)} {
		if !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	}
}

// TestProgramAgreesWithModel: on random rules and random frames, program and model name the same
// rule, or the same reason for giving the frame to the kernel.
func TestProgramAgreesWithModel(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	shmtest.Long(t)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	p := empty(t)
	var model RuleSet
	var ids []RuleID
	outcomes := map[Outcome]int{}
	for round := range 4000 {
		if round%16 == 0 {
			model.Rules, ids = changeRules(t, r, p, model.Rules, ids)
			model.Local = randomLocal(r)
			must(t, p.SetLocal(model.Local))
		}
		frame := randomFrame(t, r)
		_, by, c := decide(t, p, frame)
		i, o := model.Match(frame)
		outcomes[o]++
		want := RuleID(0)
		if o == OutcomeRule {
			want = ids[i]
		}
		counted := map[Outcome]uint64{OutcomeRule: c.Redirected + c.NoSocket + c.RulePassed +
			c.Dropped, OutcomeOtherPort: c.OtherPort, OutcomeFragment: c.Fragment,
			OutcomeShort: c.Short, OutcomeOther: c.Other, OutcomeKept: c.Kept}
		if by != want || counted[o] != 1 {
			t.Fatalf("seed %d, round %d: %x\nprogram: rule %d, %+v\nmodel: rule %d, %v\nrules: %v",
				seed, round, frame, by, c, want, o, model.Rules)
		}
	}
	for o := OutcomeRule; o <= OutcomeKept; o++ {
		if outcomes[o] < 20 {
			t.Errorf("seed %d: only %d frames with outcome %v", seed, outcomes[o], o)
		}
	}
}

// changeRules adds a random rule or removes one, in the program and in the list.
func changeRules(t *testing.T, r *rand.Rand, p *Program, rules []Rule, ids []RuleID) ([]Rule,
	[]RuleID) {
	t.Helper()
	if len(ids) > 24 || len(ids) > 0 && r.IntN(3) == 0 {
		i := r.IntN(len(ids))
		must(t, p.RemoveRule(ids[i]))
		return slices.Delete(rules, i, i+1), slices.Delete(ids, i, i+1)
	}
	rule := randomRule(r)
	id, err := p.AddRule(rule, Target{Action: Action(r.IntN(3)), Base: uint32(r.IntN(8))})
	if errors.Is(err, ErrRule) || errors.Is(err, ErrRuleExists) {
		return rules, ids
	}
	must(t, err)
	return append(rules, rule), append(ids, id)
}

func randomRule(r *rand.Rand) (rule Rule) {
	kinds := r.IntN(32)
	if kinds&fieldPort != 0 {
		rule.UDPPort = []uint16{53, 54, 68, 546}[r.IntN(4)]
	}
	if kinds&fieldDst != 0 {
		prefixes := []string{"192.0.2.2/%d", "fd00::2/%d"}
		bits := []int{32, 128}
		i := r.IntN(2)
		n := r.IntN(bits[i] + 1)
		if r.IntN(3) == 0 {
			n = bits[i]
		}
		rule.Dst = netip.MustParsePrefix(fmt.Sprintf(prefixes[i], n))
	}
	if kinds&fieldVLAN != 0 {
		rule.VLAN = []uint16{100, 101, 0}[r.IntN(3)]
		rule.Untagged = rule.VLAN == 0
	}
	if kinds&fieldEtherType != 0 {
		rule.EtherType = []uint16{0x0800, 0x86dd, 0x9000, 0x8100}[r.IntN(4)]
	}
	rule.Local = kinds&fieldLocal != 0
	rule.All = kinds == 0
	return rule
}

// randomLocal is some of the destinations that random frames have, for each the right hardware
// address or another one.
func randomLocal(r *rand.Rand) Local {
	l := Local{}
	for a, mac := range map[string][6]byte{"192.0.2.2": {2, 1}, "fd00::2": {2}} {
		if r.IntN(4) > 0 {
			mac[5] = byte(r.IntN(4) / 3)
			l[netip.MustParseAddr(a)] = mac
		}
	}
	return l
}

// randomFrame returns a datagram that something was done to.
func randomFrame(t *testing.T, r *rand.Rand) []byte {
	t.Helper()
	port := []uint16{53, 54, 55, 68, 546, 22}[r.IntN(6)]
	var b []byte
	if r.IntN(2) == 0 {
		b = datagram(t, port, [][]uint16{nil, {0x8100}, {0x88a8, 0x8100},
			{0x8100, 0x8100, 0x8100}}[r.IntN(4)]...)
		if b[12] == 0x08 && r.IntN(3) == 0 {
			b = withOptions(b, 4*r.IntN(11))
		}
	} else {
		b = overIPv6(port, [][]byte{nil, nil, {0}, {0, 60}, {43}, {44}, {0, 60, 60, 60, 60, 60},
			{60, 60, 60, 60, 60, 60, 60}, {51}}[r.IntN(9)]...)
	}
	for range r.IntN(3) { // most of what decides is in these bytes
		i := 12 + r.IntN(min(len(b)-12, 60))
		b[i] = []byte{0, 1, 2, 6, 17, 58, 43, 44, 60, 100, 0x40, 0x45, 0x60, 135, b[i] + 1,
			byte(r.Uint32())}[r.IntN(16)]
	}
	switch r.IntN(14) {
	case 3:
		if b[12] != 0x08 && b[13] == 0 { // a tag: give it a priority
			b[14] |= 0x60
		}
	case 5:
		if b[12] != 0x08 && b[13] == 0 { // of no VLAN
			b[15] = 0
		}
	case 4:
		b = neighbour(byte(126 + r.IntN(20)))
	case 0:
		b = b[:14+r.IntN(len(b)-13)]
	case 1:
		b[12], b[13] = 0x08, 0x06
	case 2:
		b[12], b[13] = 0x90, 0
	}
	return b
}
