package model

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"hash/maphash"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// verdict is what a single state says about lost wake-ups, or about messages.
type verdict uint8

const (
	moving  verdict = iota // somebody in the reader's process can still act
	over                   // all of them have left
	resting                // all of them sleep or have left, and nothing waits unseen
	lost                   // all of them sleep, something finished waits, nobody is half way; a fault
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
	// names are the first constant of those that number the steps, then who takes them.
	names() []string
}

// canonical is a protocol in which states that look different can be the same.
type canonical[S comparable] interface {
	// same gives n the form that all states have that are the same.
	same(n *S)
}

// joiner is a protocol in which some steps are one with the step before.
type joiner[S comparable] interface {
	// goOn emits what follows n at once, if there is any.
	goOn(n *S, x *search[S])
}

// search hands out copies of a state and takes its successors.
type search[S comparable] struct {
	p     protocol[S]
	c     canonical[S] // nil if states that look different are
	j     joiner[S]    // nil if no steps are one
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
	x.j, _ = p.(joiner[S])
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

// does takes a step from s, if it may be taken.
func (x *search[S]) does(s *S, who uint8, at step, may bool, do func(n *S)) {
	if may {
		x.by(who, at)
		n := x.fork(s)
		do(n)
		x.emit(n)
	}
}

// emit takes a successor, which may be changed and emitted again.
func (x *search[S]) emit(n *S) {
	if moves := x.moves; x.j != nil {
		if x.j.goOn(n, x); x.moves > moves {
			return
		}
	}
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
			if o.stuck++; firstLoss {
				o.cut = true
				return o
			}
		}
	}
	return o
}

// trapped counts the states from which nothing that may happen leads to rest any more.
func trapped[S comparable](p protocol[S]) (n int) {
	index := map[S]int32{p.start(): 0}
	states := []S{p.start()}
	var before [][]int32 // of each state, those that it may follow
	var free []int32     // can come to rest, and those before them have not been told
	x := newSearch(p)
	var i int32
	x.found = func(s *S) {
		to, known := index[*s]
		if !known {
			to = int32(len(states))
			index[*s] = to
			states = append(states, *s)
		}
		for int(to) >= len(before) {
			before = append(before, nil)
		}
		before[to] = append(before[to], i)
	}
	for ; int(i) < len(states); i++ {
		s := states[i]
		if v := p.judge(&s); v == resting || v == over {
			free = append(free, i)
		}
		x.expand(&s)
	}
	rests := make([]bool, len(states))
	for len(free) > 0 {
		last := free[len(free)-1]
		free = free[:len(free)-1]
		if !rests[last] {
			rests[last] = true
			free = append(free, before[last]...)
		}
	}
	for _, r := range rests {
		if !r {
			n++
		}
	}
	return n
}

// moves says whether anything can follow s.
func moves[S comparable](p protocol[S], s *S) bool {
	x := newSearch(p)
	x.found = func(*S) {}
	x.expand(s)
	return x.moves > 0
}

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

// interleaving searches breadth first, so what it returns is a shortest run to a loss.
func interleaving[S comparable](p protocol[S]) string {
	type origin struct {
		from int
		who  uint8
		at   step
	}
	seen := newStateSet[S]()
	defer seen.done()
	states, origins := []S{p.start()}, []origin{{from: -1}}
	seen.add(&states[0])
	x := newSearch(p)
	i := 0
	x.found = func(n *S) {
		if seen.add(n) {
			states, origins = append(states, *n), append(origins, origin{i, x.who, x.at})
		}
	}
	for ; i < len(states); i++ {
		s := states[i]
		v := p.judge(&s)
		if v < lost {
			if x.expand(&s); x.moves > 0 || v != moving {
				continue
			}
		}
		var run []string
		name, who := stepNames(p.names()[0]), p.names()[1:]
		for j := i; origins[j].from >= 0; j = origins[j].from {
			run = append(run, fmt.Sprintf("%-10s %s", who[origins[j].who], name(origins[j].at)))
		}
		var b strings.Builder
		for j := len(run) - 1; j >= 0; j-- {
			fmt.Fprintf(&b, "\n  %2d  %s", len(run)-j, run[j])
		}
		fmt.Fprintf(&b, "\n  %+v", s)
		return b.String()
	}
	return " none"
}

// tenOfEach numbers actors behind the first constant of the steps, ten of each kind.
func tenOfEach(first string, kinds ...string) []string {
	names := []string{first}
	for _, kind := range kinds {
		for i := range 10 {
			names = append(names, fmt.Sprint(kind, " ", i))
		}
	}
	return names
}

// stepNames says what steps are called: their constants, which stand in one declaration that begins
// with first, and the comments behind these.
func stepNames(first string) func(step) string {
	files, err := filepath.Glob("*_test.go")
	var names []string
	for _, file := range files {
		f, bad := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if bad != nil {
			err = bad
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			d, ok := n.(*ast.GenDecl)
			if !ok || d.Tok != token.CONST || d.Specs[0].(*ast.ValueSpec).Names[0].Name != first {
				return !ok
			}
			for _, s := range d.Specs {
				v := s.(*ast.ValueSpec)
				names = append(names, strings.TrimSpace(v.Names[0].Name+" "+v.Comment.Text()))
			}
			return false
		})
	}
	return func(at step) string {
		if int(at) < len(names) {
			return names[at]
		}
		return fmt.Sprint("step ", uint8(at), " ", err)
	}
}
