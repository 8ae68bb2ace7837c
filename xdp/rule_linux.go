package xdp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// AddRule has frames that match the rule go to the target, from the moment that it returns on; no
// frame is decided by a part of a rule meanwhile.
//
// Errors: [ErrRule], [ErrRuleExists], [ErrRulesFull].
func (p *Program) AddRule(r Rule, to Target) (RuleID, error) {
	var id RuleID
	err := p.locked(fmt.Sprintf("add rule \"%v\"", r), func() (err error) {
		id, err = p.addRule(r.normal(), to)
		return err
	})
	return id, err
}

func (p *Program) addRule(r Rule, to Target) (RuleID, error) {
	if err := r.check(); err != nil {
		return 0, err
	}
	if i := p.find(r); i >= 0 {
		return 0, fmt.Errorf("%w: number %d", ErrRuleExists, p.rules[i].id)
	}
	n := &installed{id: p.lastID + 1, rule: r}
	for n.index = 0; slices.ContainsFunc(p.rules, func(o *installed) bool {
		return o.index == n.index
	}); {
		n.index++
	}
	if most := p.objs.Hits.MaxEntries(); n.index >= most {
		return 0, fmt.Errorf("%w: possible are %d, see ProgramOptions.Rules", ErrRulesFull, most)
	}
	if err := p.setTarget(n, to); err != nil {
		return 0, err
	}
	none := make([]hit, ebpf.MustPossibleCPU())
	if err := p.objs.Hits.Put(n.index, none); err != nil {
		return 0, err
	}
	if err := p.install(append(slices.Clip(p.rules), n)); err != nil {
		return 0, err
	}
	p.lastID = n.id
	return n.id, nil
}

// setTarget gives a rule that is not installed its target, with room for the slots that it lists.
func (p *Program) setTarget(n *installed, to Target) error {
	if to.Action > Drop || to.Slots != nil && (len(to.Slots) == 0 || to.Action != ToSocket) {
		return fmt.Errorf("%w: target %+v", ErrRule, to)
	}
	n.target = to
	if to.Slots == nil {
		return nil
	}
	n.target.Slots = slices.Clone(to.Slots)
	most := p.objs.Slots.MaxEntries()
	first, ok := freeRange(p.rules, uint32(len(to.Slots)), most)
	if !ok {
		return fmt.Errorf("%w: %d slots are more than is left of %d", ErrRulesFull,
			len(to.Slots), most)
	}
	n.first = first
	for i, slot := range to.Slots {
		if err := p.objs.Slots.Put(first+uint32(i), slot); err != nil {
			return err
		}
	}
	return nil
}

// find returns the index of the rule, or -1.
func (p *Program) find(r Rule) int {
	return slices.IndexFunc(p.rules, func(o *installed) bool { return o.rule == r })
}

func (p *Program) findID(id RuleID) (int, error) {
	i := slices.IndexFunc(p.rules, func(o *installed) bool { return o.id == id })
	if i < 0 {
		return i, fmt.Errorf("%w: number %d", ErrNoRule, id)
	}
	return i, nil
}

// SetTarget changes where frames of a rule go. No frame misses the rule meanwhile. Error:
// [ErrNoRule], and those of AddRule for the target.
func (p *Program) SetTarget(id RuleID, to Target) error {
	return p.locked(fmt.Sprintf("change rule %d", id), func() error {
		i, err := p.findID(id)
		if err != nil {
			return err
		}
		return p.retarget(i, to)
	})
}

func (p *Program) retarget(i int, to Target) error {
	n := *p.rules[i]
	if err := p.setTarget(&n, to); err != nil {
		return err
	}
	next := slices.Clone(p.rules)
	next[i] = &n
	return p.install(next)
}

// RemoveRule takes a rule away; frames that it decided about are for the next rule that matches
// them, or for the kernel's stack. Error: [ErrNoRule].
func (p *Program) RemoveRule(id RuleID) error {
	return p.locked(fmt.Sprintf("remove rule %d", id), func() error {
		i, err := p.findID(id)
		if err != nil {
			return err
		}
		return p.install(slices.Delete(slices.Clone(p.rules), i, i+1))
	})
}

// SetLocal says which destinations rules with Local mean; there are none before. It takes the place
// of what was said before, and what is in both never misses a frame. Error: [ErrRulesFull].
func (p *Program) SetLocal(l Local) error {
	return p.locked("set local addresses", func() error {
		for a := range p.local {
			if _, ok := l[a]; ok {
				continue
			}
			err := present(p.objs.Locals.Delete(keyOf(netip.PrefixFrom(a, a.BitLen()))))
			if err != nil {
				return err
			}
			delete(p.local, a)
		}
		for a, mac := range l {
			if old, ok := p.local[a]; ok && old == mac {
				continue
			}
			if err := p.objs.Locals.Put(keyOf(netip.PrefixFrom(a, a.BitLen())), mac); err != nil {
				return full(err)
			}
			p.local[a] = mac
		}
		return nil
	})
}

// install makes the maps those of the rules. If that fails they are as before.
func (p *Program) install(rules []*installed) error {
	if err := p.sync(compile(rules, p.table.nets, &p.net)); err != nil {
		return errors.Join(full(err), p.sync(compile(p.rules, p.table.nets, &p.net)))
	}
	p.rules = rules
	return nil
}

func full(err error) error {
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return refine(ErrRulesFull, err)
	}
	return err
}

// sync writes the difference to what the maps hold, in an order in which no frame sees a part of a
// rule: a net comes after all entries for it and goes before them, and a combination of fields is
// announced after its entries.
func (p *Program) sync(want ruleTable) error {
	have := &p.table
	for k, v := range want.entries {
		if old, ok := have.entries[k]; ok && old == v {
			continue
		}
		if err := p.objs.steerMaps.Rules.Put(k, v); err != nil {
			return err
		}
		have.entries[k] = v
	}
	for prefix, id := range want.nets {
		if _, ok := have.nets[prefix]; ok {
			continue
		}
		if err := p.objs.Nets.Put(keyOf(prefix), id); err != nil {
			return err
		}
		have.nets[prefix] = id
	}
	if have.kinds != want.kinds {
		if err := p.objs.Kinds.Put(uint32(0), want.kinds); err != nil {
			return err
		}
		have.kinds = want.kinds
	}
	return p.prune(want)
}

func (p *Program) prune(want ruleTable) error {
	have := &p.table
	for prefix := range have.nets {
		if _, ok := want.nets[prefix]; ok {
			continue
		}
		if err := present(p.objs.Nets.Delete(keyOf(prefix))); err != nil {
			return err
		}
		delete(have.nets, prefix)
	}
	for k := range have.entries {
		if _, ok := want.entries[k]; ok {
			continue
		}
		if err := present(p.objs.steerMaps.Rules.Delete(k)); err != nil {
			return err
		}
		delete(have.entries, k)
	}
	return nil
}

// Rules lists the rules in the order in which they were added, with what each did so far.
func (p *Program) Rules() ([]RuleStatus, error) {
	var out []RuleStatus
	err := p.locked("read rules", func() error {
		for _, r := range p.rules {
			s, err := p.status(r)
			if err != nil {
				return err
			}
			out = append(out, s)
		}
		return nil
	})
	return out, err
}

func (p *Program) status(r *installed) (RuleStatus, error) {
	s := RuleStatus{ID: r.id, Rule: r.rule, Target: r.target}
	s.Target.Slots = slices.Clone(s.Target.Slots)
	var perCPU []hit
	if err := p.objs.Hits.Lookup(r.index, &perCPU); err != nil {
		return s, err
	}
	for _, h := range perCPU {
		s.Frames += h.Frames
		s.Bytes += h.Bytes
		s.NoSocket += h.NoSocket
	}
	return s, nil
}
