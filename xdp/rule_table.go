package xdp

import "net/netip"

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
type ruleValue struct{ Rule, Action, Base, Queues uint32 }

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
	first  uint32 // of its slots, if the target has some
}

func (r *installed) value() ruleValue {
	v := ruleValue{Rule: r.index, Action: uint32(r.target.Action), Base: r.target.Base}
	if r.target.Slots != nil {
		v.Base, v.Queues = r.first, uint32(len(r.target.Slots))
	}
	return v
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

// freeRange finds room for n slots beside those of the rules, or says that there is none.
func freeRange(rules []*installed, n, size uint32) (first uint32, ok bool) {
	taken := make([]bool, size)
	for _, r := range rules {
		for i := range r.target.Slots {
			taken[r.first+uint32(i)] = true
		}
	}
	for run := uint32(0); first+n <= size; {
		if run == n {
			return first, true
		}
		if taken[first+run] {
			first, run = first+run+1, 0
		} else {
			run++
		}
	}
	return 0, false
}
