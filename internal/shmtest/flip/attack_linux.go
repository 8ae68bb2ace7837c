package flip

import (
	"errors"
	"fmt"
	"math/bits"
	"os/exec"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
)

// Options of an attack.
type Options struct {
	Values int // hostile ones for each word; 0 stands for some
	Steps  int // words that are flipped between instructions too; -1 stands for all

	// Syscalls has words flipped before and after system calls, instead of all else: for calls that
	// map what they look at, or leave it to the kernel to read it.
	Syscalls bool

	blind bool // as if debug registers did nothing: for a test of that
}

const (
	someValues   = 7
	flippedBlind = 2      // words that are flipped between instructions where nothing tells of loads
	mostBlind    = 1 << 8 // instructions of a call between which they are
	mostSequence = 5      // loads of which all sequences are tried
)

// attack is one victim, again and again.
type attack struct {
	t     testing.TB
	v     *tracer
	o     Options
	stats Stats
	dead  bool
}

// Attack runs a child that plays a scene, and fails the test for whatever it does that it may not.
func Attack(t testing.TB, cmd *exec.Cmd, o Options) Stats {
	t.Helper()
	runtime.LockOSThread() // who traces a thread is a thread
	defer runtime.UnlockOSThread()
	a := &attack{t: t, v: start(t, cmd), o: o}
	defer a.v.stop()
	defer a.v.together()()
	if a.o.Values == 0 {
		a.o.Values = someValues
	}
	felt, err := a.v.feels()
	if errors.Is(err, unix.EPERM) { // a machine that forbids it
		shmtest.Require(t, "children", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	a.o.blind, a.stats.Blind = a.o.blind || !felt, !felt
	a.all()
	return a.stats
}

func (a *attack) all() {
	words, loaded := a.look()
	for i, w := range words {
		if loaded[i] == 0 {
			continue
		}
		a.stats.Loaded++
		for k := range a.o.Values {
			if !a.o.Syscalls && (!w.Index || hostile[k].index) {
				a.sequences(i, w.Name, k, loaded[i])
			}
		}
		if steps := a.o.Steps; steps < 0 || !a.v.watches && i < flippedBlind || i < steps ||
			a.o.Syscalls {
			for k := range 2 { // one value that is possible, and one that is not
				a.instructions(i, w.Name, k)
			}
		}
	}
}

// look finds out what the call loads if nobody is hostile. -1 says that it is not known, which one
// call tells.
func (a *attack) look() (words []Word, loaded []int) {
	for i := 0; i == 0 || i < len(words); i++ {
		if i > 0 && !a.v.watches {
			loaded = append(loaded, -1)
			continue
		}
		r := a.once(i, func(honest uint64, _ int) uint64 { return honest }, nil)
		if r == nil {
			return nil, nil
		}
		if r.o.Broken != "" || r.o.Poisoned {
			a.t.Errorf("while nobody is hostile: %+v", r.o)
			return nil, nil
		}
		if i == 0 {
			words = r.words
			a.stats.Words = len(words)
		}
		if n := r.n; a.v.watches {
			loaded = append(loaded, n)
		} else {
			loaded = append(loaded, -1)
		}
	}
	return words, loaded
}

type result struct {
	n      int // stops
	o      Outcome
	words  []Word
	honest uint64
}

// once makes one call, of whose stops the nth is followed by value(n) in a word. It returns nil if
// the victim is no more.
func (a *attack) once(word int, value func(honest uint64, n int) uint64, s *steps) *result {
	a.t.Helper()
	if a.dead {
		return nil
	}
	a.stats.Calls++
	r, err := a.try(word, value, s)
	if err != nil {
		name := fmt.Sprint(word)
		if word < len(r.words) {
			name = r.words[word].Name
		}
		a.t.Errorf("%s, after %d stops: %v", name, r.n, err)
		a.dead = true
		return nil
	}
	if r.o.Poisoned {
		a.stats.Poisoned++
	}
	return r
}

func (a *attack) try(word int, value func(honest uint64, n int) uint64,
	s *steps) (r *result, err error) {
	r = &result{}
	if r.words, err = a.v.ask(); err != nil {
		return r, err
	}
	w := &r.words[word]
	r.honest = a.v.load(w.Poke)
	if a.o.blind || a.o.Syscalls {
		err = errors.ErrUnsupported
	} else {
		err = a.v.watch(w.Watch)
	}
	if err == nil {
		a.v.watches = true
	} else if a.v.watches || !errors.Is(err, errors.ErrUnsupported) {
		return r, err
	}
	is, begun := r.honest, false
	set := func(to uint64) (err error) {
		if to != is {
			is = to
			err = a.v.store(w.Poke, to)
		}
		if begun && errors.Is(err, unix.EIO) { // the call has unmapped it
			err = nil
		}
		return err
	}
	if err = set(value(r.honest, 0)); err != nil {
		return r, err
	}
	begun = true
	end := func() error {
		if a.v.load(w.Poke) == is { // it is the peer's, who is honest again
			err = set(r.honest)
		}
		return errors.Join(err, a.v.unwatch())
	}
	if s == nil {
		r.n, r.o, err = a.v.call(func(n int) (int, error) {
			return unix.PTRACE_CONT, set(value(r.honest, n))
		}, end)
		a.stats.Loads += r.n
		return r, err
	}
	r.n, r.o, err = a.v.call(func(n int) (int, error) {
		if n == 0 && a.v.watches { // up to the first load nobody sees what it is
			return unix.PTRACE_CONT, nil
		}
		if a.v.accessed() {
			s.last = n
		}
		if s.most > 0 && n > s.most {
			return unix.PTRACE_CONT, a.v.unwatch()
		}
		how := unix.PTRACE_SINGLESTEP
		if a.o.Syscalls {
			how = unix.PTRACE_SYSCALL
		}
		return how, set(value(r.honest, n))
	}, end)
	if a.o.Syscalls {
		a.stats.Syscalls += r.n
	} else {
		a.stats.Steps += r.n
	}
	return r, err
}

// steps are the instructions of a call that are made one by one.
type steps struct {
	most int // so many; 0 for all
	last int // the last one that accessed the word, if that is known
}

// sequences tries what the loads of a call can see of an honest and a hostile value.
func (a *attack) sequences(word int, name string, k, loads int) {
	always := func(hostile bool) *result {
		return a.once(word, func(honest uint64, _ int) uint64 { return choose(hostile, honest, k) },
			nil)
	}
	bad := always(true)
	if bad == nil {
		return
	}
	a.judge(name, k, "always", bad, nil)
	if !a.v.watches {
		return
	}
	good := always(false)
	if good == nil {
		return
	}
	if loads > mostSequence {
		a.stats.Cut++
	}
	a.explore(word, name, k, 0, 0, []Outcome{good.o, bad.o})
}

// explore makes the call with a sequence, whose bits say which loads see the hostile value, and
// with all that differ from it only later than its first n.
func (a *attack) explore(word int, name string, k, n int, sequence uint64, constant []Outcome) {
	r := a.once(word, func(honest uint64, n int) uint64 {
		return choose(n < 64 && sequence>>n&1 != 0, honest, k)
	}, nil)
	if r == nil {
		return
	}
	a.judge(name, k, fmt.Sprintf("at loads %b", sequence), r, constant)
	for ; n < min(r.n, mostSequence); n++ {
		a.explore(word, name, k, n+1, sequence|1<<n, constant)
	}
}

// instructions flips a word between instructions, from the first one that loads it: so that of any
// two of them one sees one value and one the other.
func (a *attack) instructions(word int, name string, k int) {
	const behind = 100
	var constant []Outcome
	span := 0
	for _, bad := range []bool{false, true} {
		s := &steps{}
		if !a.v.watches && !a.o.Syscalls {
			s.most = mostBlind
		}
		r := a.once(word, func(honest uint64, _ int) uint64 { return choose(bad, honest, k) }, s)
		if r == nil {
			return
		}
		constant = append(constant, r.o)
		a.stats.Longest = max(a.stats.Longest, r.n)
		if a.v.watches {
			span = max(span, s.last+behind)
		} else {
			span = max(span, r.n)
			if bad && s.most > 0 && r.n > s.most {
				a.stats.Cut++
			}
		}
	}
	for bit := range bits.Len(uint(span)) {
		for phase := range 2 {
			r := a.once(word, func(honest uint64, n int) uint64 {
				return choose((n>>bit+phase)&1 != 0, honest, k)
			}, &steps{most: span})
			if r == nil {
				return
			}
			a.judge(name, k, fmt.Sprintf("every %d stops", 1<<bit), r, constant)
		}
	}
}

func choose(bad bool, honest uint64, k int) uint64 {
	if bad {
		return hostile[k].of(honest)
	}
	return honest
}

func (a *attack) judge(name string, k int, what string, r *result, constant []Outcome) {
	a.t.Helper()
	if constant == nil {
		constant = []Outcome{r.o}
	}
	if wrong := r.o.judge(constant, r.honest, hostile[k].of(r.honest)); wrong != "" {
		a.t.Errorf("%s is %#x, and %#x %s: %s; what is possible is %+v", name, r.honest,
			hostile[k].of(r.honest), what, wrong, constant)
	}
}

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
