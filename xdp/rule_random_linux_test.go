package xdp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

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
			if err := p.SetLocal(model.Local); err != nil {
				t.Fatal(err)
			}
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
		if err := p.RemoveRule(ids[i]); err != nil {
			t.Fatal(err)
		}
		return slices.Delete(rules, i, i+1), slices.Delete(ids, i, i+1)
	}
	rule := randomRule(r)
	id, err := p.AddRule(rule, Target{Action: Action(r.IntN(3)), Base: uint32(r.IntN(8))})
	if errors.Is(err, ErrRule) || errors.Is(err, ErrRuleExists) {
		return rules, ids
	}
	if err != nil {
		t.Fatal(err)
	}
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
