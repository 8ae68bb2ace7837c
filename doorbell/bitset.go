package doorbell

import "math/bits"

// bitset is private to the reader's process.
type bitset []uint64

func newBitset(n int) bitset    { return make(bitset, (n+63)/64) }
func (b bitset) set(i int)      { b[i/64] |= 1 << (i % 64) }
func (b bitset) clear(i int)    { b[i/64] &^= 1 << (i % 64) }
func (b bitset) has(i int) bool { return b[i/64]>>(i%64)&1 != 0 }
func (b bitset) empty() bool    { return b.next(0) < 0 }

// next returns the first member from i on, or -1.
func (b bitset) next(i int) int {
	if i >= len(b)*64 {
		return -1
	}
	w := b[i/64] >> (i % 64)
	if w != 0 {
		return i + bits.TrailingZeros64(w)
	}
	for k := i/64 + 1; k < len(b); k++ {
		if b[k] != 0 {
			return k*64 + bits.TrailingZeros64(b[k])
		}
	}
	return -1
}

func (b bitset) count() (n int) {
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// tree is a bitset with a bit for each word of it that is not zero, so that it costs what is set.
type tree struct{ leaf, top bitset }

func newTree(n int) tree {
	leaf := newBitset(n)
	return tree{leaf, newBitset(len(leaf))}
}

func (t *tree) or(word int, x uint64) {
	t.leaf[word] |= x
	t.top.set(word)
}

func (t *tree) clear(i int) {
	if t.leaf.clear(i); t.leaf[i/64] == 0 {
		t.top.clear(i / 64)
	}
}

func (t *tree) empty() bool { return t.top.empty() }

// next returns the first member from i on, or -1.
func (t *tree) next(i int) int {
	if i >= len(t.leaf)*64 {
		return -1
	}
	if w := t.leaf[i/64] >> (i % 64); w != 0 {
		return i + lowest(w)
	}
	word := t.top.next(i/64 + 1)
	if word < 0 {
		return -1
	}
	return word*64 + lowest(t.leaf[word])
}
