package model

import (
	"fmt"
	"hash/maphash"
	"strings"
	"time"
)

// verdict is what a single state says about lost wake-ups.
type verdict uint8

const (
	moving  verdict = iota // somebody in the reader's process can still act
	over                   // all of them have left
	resting                // all of them sleep or have left, and nothing waits unseen
	lost                   // all of them sleep, something finished waits, nobody is half way
	muted                  // the same, while a producer or signaller stands half way
	twice                  // more events than armings
)

// label names one step of one actor, for the printed interleaving.
type label struct {
	who uint8
	at  step
}

// emitter receives the successors of a state; it copies what it keeps.
type emitter[S comparable] func(n *S, by label)

// protocol is one variant of the bell: where it starts, what may happen next, and what is bad.
type protocol[S comparable] interface {
	start() S
	next(s *S, emit emitter[S])
	judge(s *S) verdict
	actor(who uint8) string
}

// outcome is what an exploration found. Stuck counts states from which nobody can move although
// somebody is neither asleep nor gone, which would be a deadlock of the model itself.
type outcome struct {
	states, resting, lost, muted, stuck int
	cut                                 bool
	took                                time.Duration
}

func (o outcome) String() string {
	cut := ""
	if o.cut {
		cut = " (stopped at the first loss)"
	}
	return fmt.Sprintf("states=%-9d lost=%-5d muted by a stopped peer=%-6d asleep=%-7d %5.1fs%s",
		o.states, o.lost, o.muted, o.resting, o.took.Seconds(), cut)
}

// explore visits every reachable state once. With firstLoss it returns at the first bad state.
func explore[S comparable](p protocol[S], firstLoss bool) (o outcome) {
	began := time.Now()
	defer func() { o.took = time.Since(began) }()
	seen := newStateSet[S]()
	first := p.start()
	seen.add(&first)
	stack := []S{first}
	moves := 0
	push := func(n *S, _ label) {
		moves++
		if seen.add(n) {
			stack = append(stack, *n)
		}
	}
	for len(stack) > 0 {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		o.states++
		v := p.judge(&s)
		switch v {
		case lost, twice:
			o.lost++
		case muted:
			o.muted++
		case resting:
			o.resting++
		}
		if firstLoss && v >= lost {
			o.cut = true
			return o
		}
		moves = 0
		p.next(&s, push)
		if moves == 0 && v == moving {
			o.stuck++
		}
	}
	return o
}

// interleaving searches breadth first, so what it returns is a shortest run to a loss.
func interleaving[S comparable](p protocol[S]) string {
	type origin struct {
		from int
		by   label
	}
	seen := newStateSet[S]()
	states, origins := []S{p.start()}, []origin{{from: -1}}
	seen.add(&states[0])
	for i := 0; i < len(states); i++ {
		s := states[i]
		if p.judge(&s) >= lost {
			var run []string
			for j := i; origins[j].from >= 0; j = origins[j].from {
				by := origins[j].by
				run = append(run, p.actor(by.who)+" "+stepName(p, by.at))
			}
			var b strings.Builder
			for j := len(run) - 1; j >= 0; j-- {
				fmt.Fprintf(&b, "\n  %2d  %s", len(run)-j, run[j])
			}
			fmt.Fprintf(&b, "\n  %+v", s)
			return b.String()
		}
		p.next(&s, func(n *S, by label) {
			if seen.add(n) {
				states, origins = append(states, *n), append(origins, origin{i, by})
			}
		})
	}
	return " none"
}

// stateSet remembers states by two independently seeded 64-bit hashes: 16 bytes a state, and with
// 20 million states the odds of one wrongly taken as known are below 10^-23.
type stateSet[S comparable] struct {
	a, b  maphash.Seed
	table [][2]uint64
	used  int
}

func newStateSet[S comparable]() *stateSet[S] {
	return &stateSet[S]{
		a: maphash.MakeSeed(), b: maphash.MakeSeed(), table: make([][2]uint64, 1<<12),
	}
}

func (t *stateSet[S]) add(s *S) bool {
	if t.used*3 > len(t.table)*2 {
		old := t.table
		t.table, t.used = make([][2]uint64, 2*len(old)), 0
		for _, k := range old {
			if k[0] != 0 {
				t.insert(k)
			}
		}
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

// newSeq is a sequence number that nobody has seen yet; relabel makes it small.
const newSeq = 15

// relabel gives the sequence numbers of one bell canonical names. Protocol steps only compare
// them for equality, so runs that differ in how often a bell was armed before become one state,
// and armings need no cap. A rung value that equals no number still held can never match again.
func relabel(armed, rung *uint8, held ...*uint8) {
	var name [newSeq + 1]uint8
	last := uint8(0)
	if *armed != 0 {
		last++
		name[*armed] = last
		*armed = last
	}
	for _, h := range held {
		if *h == 0 {
			continue
		}
		if name[*h] == 0 {
			last++
			name[*h] = last
		}
		*h = name[*h]
	}
	*rung = name[*rung]
}
