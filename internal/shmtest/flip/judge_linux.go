package flip

import (
	"fmt"
	"slices"
)

// hostile are the values that a word gets for another one.
var hostile = []struct {
	index bool // for indices too
	of    func(a uint64) uint64
}{
	{true, func(a uint64) uint64 { return a + 1 }},
	{true, func(uint64) uint64 { return ^uint64(0) }},
	{true, func(a uint64) uint64 { return a - 1 }},
	{false, func(uint64) uint64 { return 0 }},
	{false, func(a uint64) uint64 { return a&^0xff | 2 }},
	{true, func(a uint64) uint64 { return a + 12 }},
	{false, func(a uint64) uint64 { return a&^0xff | 7 }},
	{false, func(uint64) uint64 { return 1 << 20 }},
	{true, func(a uint64) uint64 { return a ^ 1<<63 }},
	{true, func(a uint64) uint64 { return a ^ 1<<32 }},
}

// judge says what is wrong with an outcome while a word changed between values of which constant
// ones gave constant; "" if nothing is.
func (o *Outcome) judge(constant []Outcome, values ...uint64) string {
	if o.Broken != "" {
		return o.Broken
	}
	if o.Poisoned {
		return ""
	}
	alike := false
	for i := range constant {
		c := &constant[i]
		alike = alike || c.Shape == o.Shape && len(c.Data) == len(o.Data)
	}
	if !alike {
		return fmt.Sprintf("%q, which no value gives that stays", o.Shape)
	}
	for i, d := range o.Data {
		ok := d == 0 || slices.Contains(values, d)
		for j := range constant {
			ok = ok || i < len(constant[j].Data) && constant[j].Data[i] == d
		}
		if !ok {
			return fmt.Sprintf("%q with %#x as word %d of what was copied", o.Shape, d, i)
		}
	}
	return ""
}
