package wake

import (
	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

// bothOld is what store buffering shows: each side loaded before the other's store was visible, so
// that a producer sees no sleeper and the sleeper no entry.
func bothOld(_ *litmusRig, writer, reader, round uint64) bool {
	return writer < round && reader < round
}

// half is one side of such a test: a store, then a load of the other's word.
func half(store func(p *ring.Index, round uint64), mine, theirs func(*litmusRig) *ring.Index) func(
	*litmusRig, uint64) uint64 {
	return func(l *litmusRig, round uint64) uint64 {
		store(mine(l), round)
		return theirs(l).Load()
	}
}

func wordX(l *litmusRig) *ring.Index { return l.x }
func wordY(l *litmusRig) *ring.Index { return l.y }

// The stores that stand before a load somewhere in the protocol, and the one that must not.
var (
	exchanged = func(p *ring.Index, round uint64) { p.Store(round) }
	added     = func(p *ring.Index, round uint64) { p.Add(1) }
	swapped   = func(p *ring.Index, round uint64) { p.Swap(round) }
	plain     = ring.StoreRelease
	fenced    = func(p *ring.Index, round uint64) { plain(p, round); p.Store(round) }
	paid      = func(p *ring.Index, round uint64) { p.Store(round); must(0, barrier.All()) }
)

// litmusTests returns all of them, mutants before what they are mutants of.
//
// Of these shapes amd64 reorders store buffering only, a store with a later load of another word:
// there a pass of the others proves that the compiler keeps their order, and their mutants are
// reordered in the program. On arm64 all of them can fail, the mutants with plain stores too.
func litmusTests() []litmus {
	sb := func(name string, mutant bool, w, r func(*ring.Index, uint64)) litmus {
		return litmus{name: name, mutant: mutant, writer: half(w, wordX, wordY),
			reader: half(r, wordY, wordX), forbidden: bothOld}
	}
	tests := []litmus{
		// P1, P2 against R4: tail and parked. P4 against R6 is the same: armed, and a mark.
		sb("publish without a fence and park", true, plain, exchanged),
		sb("publish and park without a fence", true, exchanged, plain),
		sb("publish and park", false, exchanged, exchanged),
		// P1 with a release store against R4 with membarrier.
		sb("release store and park unpaid", true, plain, exchanged),
		{name: "release store and paid park", writer: half(plain, wordX, wordY), barrier: true,
			reader: half(paid, wordY, wordX), forbidden: bothOld},
		// P2': the fence of a producer that finds itself parked, for which nobody pays.
		sb("release store and mark", true, plain, swapped),
		sb("release store, fence and mark", false, fenced, swapped),
		// Q3, Q4 against R6 and H1: rung in the writer's lane and armed. Counters do the same.
		sb("rung without a fence and arm", true, plain, exchanged),
		sb("rung and arm", false, added, exchanged),
		sb("rung and take", false, added, swapped),
	}
	tests = append(tests, bellTests()...)
	return append(tests, orderTests()...)
}

// bellTests are the same with a real producer, which publishes and looks whether it is parked, and
// a real bell, which parks and looks again: nobody is told if both find nothing.
func bellTests() []litmus {
	var out []litmus
	for _, c := range []struct {
		name           string
		mutant         bool
		writer, reader ring.Order
	}{
		{"bell: release stores unpaid for", true, ring.Release, ring.SeqCst},
		{"bell: release stores paid for", false, ring.Release, ring.Release},
		{"bell: release stores unpaid for again", true, ring.Release, ring.SeqCst},
		{"bell: seq-cst stores", false, ring.SeqCst, ring.SeqCst},
	} {
		out = append(out, litmus{name: c.name, mutant: c.mutant,
			barrier: c.reader == ring.Release,
			writer: func(l *litmusRig, _ uint64) uint64 {
				if l.w == nil {
					l.w = l.q.writer(0, c.writer)
				}
				_ = l.w.Flags() // as its last publish did: the word is in the cache, the tail's line is not
				l.w.publish(1)
				return l.w.Published(l.w.prod.Tail(), 0)
			},
			between: func(l *litmusRig, _ uint64) { l.heat(c.reader) },
			reader: func(l *litmusRig, _ uint64) uint64 {
				if more := must(l.r.Park()); more {
					return 1
				}
				return 0
			},
			forbidden: func(l *litmusRig, row, more, _ uint64) bool { return row == 0 && more == 0 },
		})
	}
	return out
}

// heat makes lane 0 empty and hot, whatever the last round left.
func (l *litmusRig) heat(o ring.Order) {
	if l.r == nil {
		alone := must(overlay(l.q.mem[:queueBytes(1)], 1)) // what lies behind is no lane
		l.r = newReader(alone, readerOptions{order: o})
	}
	r := l.r
	r.hints.ready[0].Or(1) // also if the round before lost the mark
	r.Take()
	r.Heat()
	if !r.hot.has(0) {
		r.cand.set(0) // the first round: there was no entry to make it hot
		r.hot.set(0)
		r.storeRow(0)
	}
	a, b := r.cons[0].Peek(laneSlots)
	r.cons[0].Release(len(a) + len(b))
}

// tries is how often a side looks for the other's word within a round.
const tries = 200

// fill stores a word into the whole line.
func (l *litmusRig) fill(v uint64) {
	for i := range l.line {
		l.line[i] = v
	}
}

// torn loads the line and counts the words that are not v.
func (l *litmusRig) torn(v uint64) (n uint64) {
	for _, w := range *(*[8]uint64)(l.line) {
		if w != v {
			n++
		}
	}
	return n
}

// anyTorn forbids that the reader found a word of another round.
func anyTorn(_ *litmusRig, _, reader, _ uint64) bool { return reader != 0 }

// messageTest: who sees the tail of a round sees its line.
func messageTest(name string, mutant bool, writer func(l *litmusRig, round uint64)) litmus {
	return litmus{name: name, mutant: mutant, forbidden: anyTorn,
		writer: func(l *litmusRig, round uint64) uint64 { writer(l, round); return 0 },
		reader: func(l *litmusRig, round uint64) uint64 {
			for range tries {
				if l.x.Load() == round {
					return l.torn(round)
				}
			}
			return 0
		}}
}

// releasedTest: who sees the head of a round overwrites what nobody looks at any more.
func releasedTest(name string, mutant bool,
	reader func(l *litmusRig, round uint64) uint64) litmus {
	return litmus{name: name, mutant: mutant, forbidden: anyTorn, reader: reader,
		writer: func(l *litmusRig, round uint64) uint64 {
			for range tries {
				if l.y.Load() == round {
					l.fill(round)
					return 1
				}
			}
			return 0
		},
		between: func(l *litmusRig, _ uint64) { l.fill(0) }}
}

// seqlockTest: a line between two looks at one even number is whole.
func seqlockTest(name string, mutant bool) litmus {
	return litmus{name: name, mutant: mutant, forbidden: anyTorn,
		writer: func(l *litmusRig, round uint64) uint64 {
			if !mutant {
				l.z.Store(2*round - 1)
			}
			l.fill(round)
			l.z.Store(2 * round)
			return 0
		},
		reader: func(l *litmusRig, round uint64) uint64 {
			for range tries {
				seq := l.z.Load()
				n := l.torn(seq / 2)
				if seq&1 == 0 && l.z.Load() == seq && n != 0 {
					return n
				}
			}
			return 0
		}}
}

// orderTests are the orders of two stores, or of a load and a store, that the protocol relies on.
// A load of the line is one of 16 bytes at a time, of what was stored 8 bytes at a time, as it is
// when a completion is read. Nothing relies on two readers seeing the stores of two writers in one
// order (IRIW): only the reader looks at more than one lane, and each lane for itself.
func orderTests() []litmus {
	return []litmus{
		messageTest("tail before the entry", true, func(l *litmusRig, round uint64) {
			ring.StoreRelease(l.x, round)
			l.fill(round)
		}),
		messageTest("entry before the tail, release", false, func(l *litmusRig, round uint64) {
			l.fill(round)
			ring.StoreRelease(l.x, round)
		}),
		messageTest("entry before the tail, seq-cst", false, func(l *litmusRig, round uint64) {
			l.fill(round)
			l.x.Store(round)
		}),
		releasedTest("head before the last look", true, func(l *litmusRig, round uint64) uint64 {
			ring.StoreRelease(l.y, round)
			spin.Pause(8)
			return l.torn(0)
		}),
		releasedTest("last look before the head", false, func(l *litmusRig, round uint64) uint64 {
			n := l.torn(0)
			ring.StoreRelease(l.y, round)
			return n
		}),
		seqlockTest("row that does not say that it changes", true),
		seqlockTest("row that says when it changes", false),
	}
}
