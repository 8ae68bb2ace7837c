package model

import (
	"fmt"
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

// protocol is one variant of a model: where it starts, what may happen next, and what is bad. Its
// steps carry the names of the code's.
type protocol[S comparable] interface {
	start() S
	// next emits each state that may follow: copies of s that x makes.
	next(s *S, x *search[S])
	judge(s *S) verdict
	actor(who uint8) string
	// steps is the name of the first constant of those that number the steps of the model.
	steps() string
}

// canonical is a protocol in which states that look different can be the same.
type canonical[S comparable] interface {
	// same gives n the form that all states have that are the same.
	same(n *S)
}

// search hands out copies of a state and takes its successors.
type search[S comparable] struct {
	p     protocol[S]
	c     canonical[S] // nil if states that look different are
	who   uint8
	at    step
	moves int // of the state at hand
	found func(n *S)
	forks []*S
	used  int
}

func newSearch[S comparable](p protocol[S]) *search[S] {
	x := &search[S]{p: p}
	x.c, _ = p.(canonical[S])
	return x
}

// expand emits the successors of s.
func (x *search[S]) expand(s *S) {
	x.moves, x.used = 0, 0
	x.p.next(s, x)
}

// fork copies a state. The copy is good until the next state is expanded.
func (x *search[S]) fork(s *S) *S {
	if x.used == len(x.forks) {
		x.forks = append(x.forks, new(S))
	}
	n := x.forks[x.used]
	x.used++
	*n = *s
	return n
}

// by names who does what until the next call, for the printed interleaving.
func (x *search[S]) by(who uint8, at step) { x.who, x.at = who, at }

// emit takes a successor, which may be changed and emitted again.
func (x *search[S]) emit(n *S) {
	if x.c != nil {
		x.c.same(n)
	}
	x.moves++
	x.found(n)
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
	defer seen.done()
	s := p.start()
	seen.add(&s)
	stack := []S{s}
	x := newSearch(p)
	x.found = func(n *S) {
		if seen.add(n) {
			stack = append(stack, *n)
		}
	}
	for len(stack) > 0 {
		s = stack[len(stack)-1]
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
		if x.expand(&s); x.moves == 0 && v == moving {
			o.stuck++
		}
	}
	return o
}

// moves says whether anything can follow s.
func moves[S comparable](p protocol[S], s *S) bool {
	x := newSearch(p)
	x.found = func(*S) {}
	x.expand(s)
	return x.moves > 0
}
