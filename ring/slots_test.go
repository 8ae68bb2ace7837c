package ring_test

import (
	"strings"
	"testing"

	"github.com/shmring/shmring/ring"
)

func slotsOf[T any](mem []byte) error {
	s, err := ring.Slots[T](mem)
	if err == nil && (len(s) == 0 || cap(s) != len(s)) {
		panic("slots without slots, or with room behind them")
	}
	return err
}

func TestSlotsTakesPlainData(t *testing.T) {
	type entry struct {
		A    uint64
		B    [6]uint32
		C    struct{ X, Y float64 }
		D    int16
		E    [3]int8
		F, _ bool
	}
	mem := make([]byte, 64*8)
	for name, err := range map[string]error{
		"uint64": slotsOf[uint64](mem), "array": slotsOf[[8]uint64](mem),
		"byte": slotsOf[byte](mem), "float": slotsOf[float32](mem), "struct": slotsOf[entry](mem[:448]),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSlotsRefuses(t *testing.T) {
	mem := make([]byte, 128)
	for name, c := range map[string]struct {
		err  error
		says string
	}{
		"int":        {slotsOf[int](mem), "int cannot be shared"},
		"uint":       {slotsOf[uint](mem), "uint cannot be shared"},
		"uintptr":    {slotsOf[uintptr](mem), "uintptr cannot be shared"},
		"pointer":    {slotsOf[*uint64](mem), "cannot be shared"},
		"string":     {slotsOf[string](mem), "string cannot be shared"},
		"slice":      {slotsOf[[]byte](mem), "cannot be shared"},
		"map":        {slotsOf[map[int8]int8](mem), "cannot be shared"},
		"func":       {slotsOf[func()](mem), "cannot be shared"},
		"chan":       {slotsOf[chan int8](mem), "cannot be shared"},
		"interface":  {slotsOf[any](mem), "cannot be shared"},
		"complex":    {slotsOf[complex128](mem), "cannot be shared"},
		"array":      {slotsOf[[2]*byte](mem), "cannot be shared"},
		"field":      {slotsOf[struct{ Deep struct{ P *byte } }](mem), "field P"},
		"no size":    {slotsOf[struct{}](mem), "whole number"},
		"no pointer": {slotsOf[[0]*byte](mem), "cannot be shared"},
		"odd length": {slotsOf[uint64](mem[:127]), "whole number"},
		"no memory":  {slotsOf[uint64](nil), "whole number"},
		"alignment":  {slotsOf[uint64](mem[1:9]), "aligned"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.says) {
			t.Errorf("%s: error is %v, want one with %q", name, c.err, c.says)
		}
	}
}

func TestIndexAt(t *testing.T) {
	mem := make([]byte, 32)
	for off := range uint64(40) {
		i, err := ring.IndexAt(mem, off)
		if fits := off%8 == 0 && off <= 24; fits != (err == nil) || fits != (i != nil) {
			t.Errorf("offset %d: %v", off, err)
		}
		if i != nil {
			i.Store(off + 1)
			if mem[off] != byte(off+1) {
				t.Errorf("offset %d: the word lies elsewhere", off)
			}
		}
	}
	if _, err := ring.IndexAt(mem[:8], 0); err != nil {
		t.Errorf("the one word of 8 bytes: %v", err)
	}
	for _, off := range []uint64{1<<64 - 8, 1 << 63} {
		if _, err := ring.IndexAt(mem, off); err == nil {
			t.Errorf("offset %#x is taken", off)
		}
	}
	for _, short := range [][]byte{nil, mem[:7], mem[1:9]} {
		if _, err := ring.IndexAt(short, 0); err == nil {
			t.Errorf("an index word in %d bytes, or unaligned", len(short))
		}
	}
}
