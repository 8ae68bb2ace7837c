package model

import (
	"hash/maphash"
	"sync"
)

// stateSet remembers states by two independently seeded 64-bit hashes: 16 bytes a state, and with
// 20 million states the odds of one wrongly taken as known are below 10^-23.
type stateSet[S comparable] struct {
	a, b  maphash.Seed
	table [][2]uint64
	used  int
}

// tables are those of sets that are done with, empty, by the logarithm of their lengths: fresh
// memory costs more than the states that are written to it.
var tables struct {
	sync.Mutex
	free [64][][][2]uint64
}

// tableBits is the logarithm of the length of a first table, and of the last that is kept.
const (
	tableBits = 12
	keptBits  = 22
)

func newTable(bits int) [][2]uint64 {
	tables.Lock()
	defer tables.Unlock()
	if free := tables.free[bits]; len(free) > 0 {
		tables.free[bits] = free[:len(free)-1]
		return free[len(free)-1]
	}
	return make([][2]uint64, 1<<bits)
}

func freeTable(t [][2]uint64) {
	bits := tableBits
	for len(t) > 1<<bits {
		bits++
	}
	if bits <= keptBits {
		clear(t)
		tables.Lock()
		tables.free[bits] = append(tables.free[bits], t)
		tables.Unlock()
	}
}

func newStateSet[S comparable]() *stateSet[S] {
	return &stateSet[S]{a: maphash.MakeSeed(), b: maphash.MakeSeed(), table: newTable(tableBits)}
}

func (t *stateSet[S]) done() { freeTable(t.table) }

func (t *stateSet[S]) add(s *S) bool {
	if t.used*3 > len(t.table)*2 {
		old, bits := t.table, tableBits
		for len(old) >= 1<<bits {
			bits++
		}
		t.table, t.used = newTable(bits), 0
		for _, k := range old {
			if k[0] != 0 {
				t.insert(k)
			}
		}
		freeTable(old)
	}
	// Zero marks a free slot, hence the low bit.
	return t.insert([2]uint64{maphash.Comparable(t.a, *s) | 1, maphash.Comparable(t.b, *s)})
}

func (t *stateSet[S]) insert(k [2]uint64) bool {
	mask := uint64(len(t.table) - 1)
	for i := (k[0] >> 1) & mask; ; i = (i + 1) & mask {
		switch t.table[i] {
		case k:
			return false
		case [2]uint64{}:
			t.table[i] = k
			t.used++
			return true
		}
	}
}
