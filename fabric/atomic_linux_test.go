package fabric_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
)

type msg = fabric.AtomicMsg

// sizeOf is the bytes of an element.
func sizeOf(d fabric.Datatype) int {
	if d <= fabric.Uint64 {
		return 1 << (d / 2)
	}
	return 4 << (d - fabric.Float32)
}

// bitsOf returns a number as an element of a type.
func bitsOf(d fabric.Datatype, v float64) (b []byte) {
	var w uint64
	switch d {
	case fabric.Float32:
		w = uint64(math.Float32bits(float32(v)))
	case fabric.Float64:
		w = math.Float64bits(v)
	default:
		w = uint64(int64(v))
	}
	return binary.LittleEndian.AppendUint64(nil, w)[:sizeOf(d)]
}

// TestAtomic: each operation on each type, in memory of another process: what it makes of two
// elements, and what it fetches. What lies beside them stays.
func TestAtomic(t *testing.T) {
	shmtest.Conforms(t)
	e, c, to := besideKeeper(t, fabric.Options{})
	at := c.region(t, 64, allAccess)
	nan := math.NaN()
	const (
		signed = 1 << iota // types that the row is for
		unsigned
		float
		all  = signed | unsigned | float
		ints = signed | unsigned
	)
	rows := []struct {
		op            fabric.AtomicOp
		types         int
		x, v, c, want float64
	}{
		{fabric.Min, all, 5, 3, 0, 3}, {fabric.Min, all, 3, 5, 0, 3},
		{fabric.Min, signed | float, 3, -5, 0, -5}, {fabric.Min, unsigned, 3, -5, 0, 3},
		{fabric.Max, all, 5, 3, 0, 5}, {fabric.Max, all, 3, 5, 0, 5},
		{fabric.Max, signed | float, 3, -5, 0, 3}, {fabric.Max, unsigned, 3, -5, 0, -5},
		{fabric.Sum, all, 5, 3, 0, 8}, {fabric.Sum, ints, 5, -6, 0, -1},
		{fabric.Sum, float, .5, .25, 0, .75},
		{fabric.Prod, all, 5, 3, 0, 15}, {fabric.Prod, ints, 5, -3, 0, -15},
		{fabric.LogicalOr, all, 0, 0, 0, 0}, {fabric.LogicalOr, all, 0, 6, 0, 1},
		{fabric.LogicalAnd, all, 6, 9, 0, 1}, {fabric.LogicalAnd, all, 6, 0, 0, 0},
		{fabric.LogicalXor, all, 6, 9, 0, 0}, {fabric.LogicalXor, all, 0, 9, 0, 1},
		{fabric.BitOr, ints, 12, 10, 0, 14}, {fabric.BitAnd, ints, 12, 10, 0, 8},
		{fabric.BitXor, ints, 12, 10, 0, 6}, {fabric.AtomicRead, all, 5, 0, 0, 5},
		{fabric.AtomicWrite, all, 5, 3, 0, 3},
		{fabric.CompareSwap, all, 5, 3, 5, 3}, {fabric.CompareSwap, all, 5, 3, 4, 5},
		{fabric.CompareSwap, float, nan, 3, nan, nan},
		{fabric.CompareSwapNE, all, 5, 3, 5, 5}, {fabric.CompareSwapNE, all, 5, 3, 4, 3},
		{fabric.CompareSwapLE, all, 5, 3, 5, 3}, {fabric.CompareSwapLE, all, 5, 3, 6, 5},
		{fabric.CompareSwapLT, all, 5, 3, 5, 5}, {fabric.CompareSwapLT, all, 5, 3, 4, 3},
		{fabric.CompareSwapGE, all, 5, 3, 5, 3}, {fabric.CompareSwapGE, all, 5, 3, 4, 5},
		{fabric.CompareSwapGT, all, 5, 3, 5, 5}, {fabric.CompareSwapGT, all, 5, 3, 6, 3},
		{fabric.CompareSwapLT, signed | float, 5, 3, -1, 3},
		{fabric.CompareSwapLT, unsigned, 5, 3, -1, 5},
		{fabric.MaskedSwap, ints, 12, 3, 6, 10},
	}
	for d := fabric.Int8; d <= fabric.Float64; d++ {
		class := []int{signed, unsigned}[d%2]
		if d >= fabric.Float32 {
			class = float
		}
		size := sizeOf(d)
		for _, r := range rows {
			if r.types&class == 0 {
				if b := r.op; b == fabric.BitOr || b == fabric.BitAnd || b == fabric.BitXor ||
					b == fabric.MaskedSwap {
					m := msg{Op: r.op, Type: d, Buf: bitsOf(d, 1), Addr: to, At: at}
					if err := e.Atomic(&m); err != fabric.ErrNotSupported {
						t.Errorf("%v of type %v: %v", r.op, d, err)
					}
				}
				continue
			}
			two := func(v float64) []byte { return append(bitsOf(d, v), bitsOf(d, v)...) }
			around := pattern(64)
			copy(around[16:], two(r.x))
			must(t, e.Write(around, to, at, 1))
			completes(t, e)
			m := msg{Op: r.op, Type: d, Buf: two(r.v), Result: make([]byte, 2*size),
				Addr: to, At: fabric.Remote{Key: at.Key, Offset: 16}, Context: 3}
			if r.op == fabric.AtomicRead {
				m.Buf = nil
			}
			if r.op >= fabric.CompareSwap {
				m.Compare = two(r.c)
			}
			must(t, e.Atomic(&m))
			if c := completes(t, e); c.Flags != cq.FlagAtomic|cq.FlagRead || c.Context != 3 ||
				c.Len != uint64(2*size) {
				t.Errorf("fetched %+v", c)
			}
			copy(around[16:], two(r.want))
			got := make([]byte, 64)
			must(t, e.Read(got, to, at, 1))
			completes(t, e)
			if string(got) != string(around) || string(m.Result) != string(two(r.x)) {
				t.Errorf("%v of type %v: of %v with %v, %v it made %v, fetched %v", r.op, d, two(r.x),
					m.Buf, m.Compare, got[14:34], m.Result)
			}
		}
	}
	c.Stop(t)
}

// TestAtomicRefused: what is no atomic is refused.
func TestAtomicRefused(t *testing.T) {
	a, b := opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{Remote: 4096})
	to := a.knows(t, "b")
	r := shmtest.Got(b.Register(16, cq.FlagAtomic)).Or(t)
	buf := make([]byte, 32)
	const reads, swaps = fabric.AtomicRead, fabric.CompareSwap
	unsupported, flags, beyond := fabric.ErrNotSupported, fabric.ErrFlags, fabric.ErrRange
	for name, x := range map[string]struct {
		m    fabric.AtomicMsg
		at   uint64
		want error
	}{
		"16 bytes":            {msg{Type: fabric.Float64 + 1, Buf: buf[:16]}, 0, unsupported},
		"no operation":        {msg{Op: fabric.MaskedSwap + 1, Buf: buf[:1]}, 0, unsupported},
		"fence":               {msg{Flags: cq.FlagFence, Buf: buf[:1]}, 0, unsupported},
		"data":                {msg{Flags: cq.FlagRemoteCQData, Buf: buf[:1]}, 0, flags},
		"inject of a fetch":   {msg{Flags: cq.FlagInjectCall, Buf: buf[:1], Result: buf[:1]}, 0, flags},
		"nothing":             {msg{}, 0, flags},
		"a part":              {msg{Type: fabric.Int32, Buf: buf[:6]}, 0, flags},
		"a short result":      {msg{Buf: buf[:2], Result: buf[:1]}, 0, flags},
		"nothing to compare":  {msg{Op: swaps, Buf: buf[:1]}, 0, flags},
		"compared in vain":    {msg{Buf: buf[:1], Compare: buf[:1]}, 0, flags},
		"a read of operands":  {msg{Op: reads, Buf: buf[:1], Result: buf[:1]}, 0, flags},
		"a read to nowhere":   {msg{Op: reads}, 0, flags},
		"not aligned":         {msg{Type: fabric.Int64, Buf: buf[:8]}, 4, beyond},
		"beyond":              {msg{Type: fabric.Int64, Buf: buf[:24]}, 0, beyond},
		"not to be read":      {msg{Type: fabric.Int64, Buf: buf[:8]}, 0, nil},
		"a fetch, aligned":    {msg{Type: fabric.Int16, Buf: buf[:2], Result: buf[:2]}, 6, nil},
		"silent, without one": {msg{Flags: cq.FlagInjectCall, Buf: buf[:1]}, 3, nil},
	} {
		x.m.Addr, x.m.At = to, fabric.Remote{Key: r.Key(), Offset: x.at}
		if err := a.Atomic(&x.m); err != x.want {
			t.Errorf("%s: %v, want %v", name, err, x.want)
		}
	}
	if err := a.Read(buf[:1], to, fabric.Remote{Key: r.Key()}, 1); err != fabric.ErrAccess {
		t.Errorf("a read where atomics are allowed: %v", err)
	}
	completes(t, a)
	completes(t, a)
	nothing(t, a)
}

const additions = 30_000 // of which no process is done before the others begin

// adder adds to elements of main's memory, of each size, that lie in one word.
func adder() {
	e := shmtest.Needs(open("adder-"+os.Getenv("NUMBER"), fabric.Options{}))
	to := shmtest.Needs(e.Resolve("main"))
	var at fabric.Remote
	shmtest.Needs(fmt.Scan(&at.Key))
	need(e.adds(to, at))
	fmt.Println("added")
	need(e.close())
}

func (e *end) adds(to cq.Addr, at fabric.Remote) (err error) {
	for i := 0; i < additions && err == nil; i++ {
		for _, x := range []struct {
			d  fabric.Datatype
			at uint64
		}{{fabric.Uint8, 0}, {fabric.Uint8, 1}, {fabric.Uint16, 2}, {fabric.Uint32, 4},
			{fabric.Uint64, 8}, {fabric.Float64, 16}} {
			m := msg{Op: fabric.Sum, Type: x.d, Buf: bitsOf(x.d, 1), Addr: to,
				At: fabric.Remote{Key: at.Key, Offset: x.at}, Flags: cq.FlagInjectCall}
			if err == nil {
				err = e.Atomic(&m)
			}
		}
	}
	return err
}

// TestAtomicTogether: two processes and the owner add to the same words, and none is lost, nor does
// one come into the next.
func TestAtomicTogether(t *testing.T) {
	e := opened(t, "main", fabric.Options{Remote: 4096})
	r := shmtest.Got(e.Register(24, cq.FlagAtomic)).Or(t)
	to := e.knows(t, "main")
	clear(r.Bytes())
	var children [2]*child
	for i := range children {
		children[i] = start(t, "adder", "NUMBER="+fmt.Sprint(i))
	}
	for _, c := range children {
		shmtest.Got(fmt.Fprintln(c.In, r.Key())).Or(t)
	}
	must(t, e.adds(to, fabric.Remote{Key: r.Key()}))
	words := kind.Overlays[atomic.Uint64](r.Bytes())
	for range additions {
		words[1].Add(1)
	}
	for _, c := range children {
		c.Says(t, "added")
		c.Stop(t)
	}
	const n = 3 * additions
	low := uint64(n%256)<<8 | uint64(n%256) | uint64(n%65536)<<16 | uint64(n)<<32
	if got := words[0].Load(); got != low || words[1].Load() != n+additions ||
		math.Float64frombits(words[2].Load()) != n {
		t.Errorf("%x, want %x; %d; %x", got, low, words[1].Load(), words[2].Load())
	}
}
