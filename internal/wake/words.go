package wake

import (
	"math/bits"
	"sync/atomic"
)

// The armed word of a queue. The reader's process alone writes it, under the queue's lock except
// for bit 34, which is set and cleared in one atomic step; a producer loads it once per ring.
//
//	bits 0..31  sequence number of the arming
//	bit 32      a reader sleeps on the queue's futex
//	bit 33      it waits for more than one entry: look at the lane's wake index
//	bit 34      a wait set or poll set has the queue as a member
//	bit 35      the user sleeps on the queue's descriptor
//	bits 36,37  a completion channel is armed: NotifyNone, NotifySolicited or NotifyAny
//	bits 48..63 generation of the reader, so that a producer notices a successor's descriptor
const (
	armDirect = 1 << 32
	armThr    = 1 << 33
	armDom    = 1 << 34
	armFD     = 1 << 35
	armNotify = 3 << armNotifyShift
	armFlags  = armDirect | armThr | armDom | armFD | armNotify

	armNotifyShift = 36
	armGenShift    = 48
)

// ArmKnown are the bits of an armed word that mean something.
const ArmKnown = 1<<(armNotifyShift+2) - 1 | (1<<16-1)<<armGenShift

// Parked is bit 0 of a lane's row word: the reader no longer looks at the lane. The other bits
// belong to the layer above, which uses them to send a producer down its slow path.
const Parked = 1

// Arm is the reader's armed word on a line of its own.
type Arm struct {
	Word atomic.Uint64
	_    [120]byte
}

// Row is what the reader writes for one lane and its producer reads after a publish.
type Row struct {
	Parked atomic.Uint64 // Parked, and the layer above's flags
	Index  atomic.Uint64 // wake index: with a threshold, do not wake before the tail reaches it
	_      [112]byte
}

// Hints are the words of a queue, or of a domain, that its producers write. They are hints: whoever
// took one may die before acting on it, and a reader makes up for that with a full look. A producer
// of the same user that forges them can cause a wake too many, or keep a sleeper asleep until the
// next wake of any kind; it can do worse to a process of its user by other means.
// In memory the first three stand 128 bytes apart, the bits follow.
type Hints struct {
	epoch   *atomic.Uint32 // futex word; grows with every wake
	rung    *atomic.Uint64 // sequence number of the arming that was rung last
	latch   *atomic.Uint32 // 1: a signal that nobody took yet
	lanes   int
	ready   []atomic.Uint64 // a bit per lane (queue): look at it
	summary []atomic.Uint64 // a domain only: a bit per word of ready, set after the bit
}

// HintsFixedBytes is the size of the part of the hints before the ready bits.
const HintsFixedBytes = 3 * 128

// HintsBytes returns how much memory the hints of a queue with so many lanes take.
func HintsBytes(lanes int) uint64 {
	return HintsFixedBytes + uint64(lanes+63)/64*8
}

// DomainBytes returns how much memory the hints of a domain with so many queues take: as for a
// queue, and the summary words over the bits.
func DomainBytes(queues int) uint64 {
	words := uint64(queues+63) / 64
	return HintsFixedBytes + (words+(words+63)/64)*8
}

// View is what an inspector shows of a queue's bell. It is a snapshot of words that change.
type View struct {
	Armed  bool // a reader sleeps, or the user on its descriptor
	Direct bool
	FD     bool
	Member bool // of a wait set or poll set
	Notify int  // what a completion channel waits for: NotifyNone, NotifySolicited, NotifyAny
	Seq    uint32
	Rung   uint32
	Epoch  uint32
	Signal bool // a signal is pending
	Ready  int  // lanes marked and not looked at
	// Latch and Stray are for checks: no honest producer makes the latch more than 1, or marks what
	// is no lane.
	Latch uint32
	Stray uint64 // of the last word of ready bits, those that stand for no lane
}

// MapHints lays the hints of a queue with so many lanes over mem.
func MapHints(mem []byte, lanes int) (*Hints, error) {
	f, err := at[hintsFixed](mem, 0)
	if err != nil {
		return nil, err
	}
	ready, err := words(mem, HintsFixedBytes, (lanes+63)/64)
	if err != nil {
		return nil, err
	}
	return &Hints{epoch: &f.epoch, rung: &f.rung, latch: &f.latch, lanes: lanes,
		ready: ready}, nil
}

// MapDomain lays the hints of a domain with so many queues over mem.
func MapDomain(mem []byte, queues int) (*Hints, error) {
	h, err := MapHints(mem, queues)
	if err != nil {
		return nil, err
	}
	n := len(h.ready)
	h.summary, err = words(mem, HintsFixedBytes+uint64(n)*8, (n+63)/64)
	return h, err
}

// DropSignal takes a signal that nobody waits for.
func (h *Hints) DropSignal() { h.latch.Store(0) }

// mark sets bit i of words unless it is set: a producer skips the store, never what follows it.
func mark(words []atomic.Uint64, i int) {
	if w, b := &words[i/64], uint64(1)<<(i%64); w.Load()&b == 0 {
		w.Or(b)
	}
}

// HintsLatchOffset is the offset of the latch in the hints, in bytes. The latch is 1 while a signal
// waits for somebody to take it.
const HintsLatchOffset = 256

// Inspect reads a queue's bell without changing it.
func Inspect(armed uint64, h *Hints) View {
	v := View{
		Armed:  armed&armFlags != 0,
		Direct: armed&armDirect != 0,
		FD:     armed&armFD != 0,
		Member: armed&armDom != 0,
		Notify: notifyOf(armed),
		Seq:    uint32(armed),
		Rung:   uint32(h.rung.Load()),
		Epoch:  h.epoch.Load(),
		Latch:  h.latch.Load(),
	}
	v.Signal = v.Latch != 0
	if h.lanes%64 != 0 {
		v.Stray = h.ready[h.lanes/64].Load() >> (h.lanes % 64) << (h.lanes % 64)
	}
	for i := range h.ready {
		v.Ready += bits.OnesCount64(h.ready[i].Load())
	}
	return v
}

// bitset is private to the reader's process.
type bitset []uint64

func newBitset(n int) bitset    { return make(bitset, (n+63)/64) }
func (b bitset) set(i int)      { b[uint(i)/64] |= 1 << (uint(i) % 64) }
func (b bitset) clear(i int)    { b[uint(i)/64] &^= 1 << (uint(i) % 64) }
func (b bitset) has(i int) bool { return b[uint(i)/64]>>(uint(i)%64)&1 != 0 }
func (b bitset) empty() bool    { return b.next(0) < 0 }

// next returns the first member from i on, or -1.
func (b bitset) next(i int) int {
	k := int(uint(i) / 64) // a division of what has no sign is a shift
	if k >= len(b) {
		return -1
	}
	if w := b[k] >> (uint(i) % 64); w != 0 {
		return i + bits.TrailingZeros64(w)
	}
	for k++; k < len(b); k++ {
		if b[k] != 0 {
			return k*64 + bits.TrailingZeros64(b[k])
		}
	}
	return -1
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
