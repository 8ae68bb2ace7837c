package model

import (
	"cmp"
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

// families are all that is explored, in the order of the page.
var families = []family{queues, others, counters, frames, follows, glances, many, rooms, rings,
	wraps, ends, feeders, flows, chunks, references, transfers, levels, lives,
	regions, parts, connections, meetings}

// family is the variants of one model, and rules that are left out of them.
type family struct {
	title    string // of its section of the page
	variants []variant
	mutants  []mutant // these must lose something
	traps    []mutant // from somewhere these lead to no rest
	spare    []mutant // these lose nothing: the rule is not required
}

// variant is a form of a model that must not lose anything.
type variant struct {
	key   string
	text  string // of queues, whose keys are short
	payer string // who pays for the order of a store and a load, if that is explored both ways
	explored
}

// explored is a model without the type of its states.
type explored struct {
	run     func(bug string, firstLoss bool) outcome
	trace   func(bug string) string
	trapped func(bug string) int
}

// deviant is the part of a model that is told its deviation, or none.
type deviant struct{ bug string }

func (d *deviant) deviate(bug string) { d.bug = bug }

// form makes a variant of a model, or of a pointer to one. Each run has a copy that deviates.
func form[S comparable, M protocol[S]](key string, m M) variant {
	with := func(bug string) protocol[S] {
		model := reflect.Indirect(reflect.ValueOf(m))
		n := reflect.New(model.Type())
		n.Elem().Set(model)
		n.Interface().(interface{ deviate(bug string) }).deviate(bug)
		return n.Interface().(protocol[S])
	}
	return variant{key: key, explored: explored{
		run:     func(bug string, firstLoss bool) outcome { return explore(with(bug), firstLoss) },
		trace:   func(bug string) string { return interleaving(with(bug)) },
		trapped: func(bug string) int { return trapped(with(bug)) },
	}}
}

// mutant is a deviation of the variant base.
type mutant struct{ base, bug string }

func on(base string, bugs ...string) (ms []mutant) {
	for _, b := range bugs {
		ms = append(ms, mutant{base, b})
	}
	return ms
}

// id is the name of a variant, under which its states are recorded.
func (f *family) id(v variant) string {
	if v.payer != "" {
		return v.key + " " + v.payer
	}
	return f.title + ": " + v.key
}

// bases are the variants that a mutant is tried with: one is enough, the smallest, but for the
// complete form.
func (f *family) bases(t *testing.T, m mutant) (vs []variant) {
	for _, v := range f.variants {
		if v.key == m.base && (v.payer != producerPays || !slices.Contains(aboutBuffers, m.bug)) {
			vs = append(vs, v)
		}
	}
	if len(vs) == 0 {
		t.Fatalf("no variant %q", m.base)
	}
	if !*modelFull {
		vs = vs[:1]
	}
	return vs
}

// small is how many states a variant has that each run affords.
const small = 40_000

// affordable tells whether a variant is explored whole: what is, depends on its number of states.
func affordable(t *testing.T, id string) bool {
	n, ok := recorded(id)
	if !ok && !*modelRecord && !slices.Contains(unended, id) {
		t.Errorf("the states of %s are not recorded: run with -model.record", id)
	}
	return explorable(id) && (n <= small || *modelRecord || chosen(id, ""))
}

// explorable tells whether a variant is explored whole in some runs without -model.full.
func explorable(id string) bool {
	n, ok := recorded(id)
	return *modelFull || n <= 405_000 && (ok || *modelRecord)
}

// chosen tells whether something is done with a variant: of those that are not small each run has a
// few, by its seed, and none with -short.
func chosen(id, what string) bool {
	if n, ok := recorded(id); *modelFull || ok && n <= small {
		return true
	}
	h := fnv.New64a()
	fmt.Fprint(h, seed(), id, "/", what)
	return !testing.Short() && h.Sum64()%4 == 0
}

// seed is what this run chooses by.
var seed = sync.OnceValue(func() uint64 {
	return cmp.Or(*modelSeed, rand.Uint64())
})

func TestLosesNothing(t *testing.T) {
	shmtest.Conforms(t)
	t.Log("-model.seed", seed())
	for _, f := range families {
		for _, v := range f.variants {
			id := f.id(v)
			if !affordable(t, id) {
				continue
			}
			t.Run(id, func(t *testing.T) {
				t.Parallel()
				o := v.run("", false)
				t.Logf("%-32s %v", id, o)
				compare(t, id, o)
				if o.resting == 0 || o.stuck > 0 {
					t.Errorf("%d states asleep, %d stuck", o.resting, o.stuck)
				}
				if o.lost+o.muted > 0 {
					t.Errorf("lost %d, muted %d; shortest run:%s", o.lost, o.muted, v.trace(""))
				}
			})
		}
	}
}

func every(string) bool { return true }

// eachMutant runs a test for each mutant of one kind that a family has, on each of its bases.
func eachMutant(t *testing.T, of func(f family) []mutant, affords func(id string) bool,
	f func(t *testing.T, v variant, bug string)) {
	t.Log("-model.seed", seed())
	for _, fam := range families {
		for _, m := range of(fam) {
			for _, v := range fam.bases(t, m) {
				if id := fam.id(v); affords(id) && chosen(id, m.bug) {
					t.Run(id+"/"+m.bug, func(t *testing.T) {
						t.Parallel()
						f(t, v, m.bug)
					})
				}
			}
		}
	}
}

func TestMutantsFall(t *testing.T) {
	eachMutant(t, func(f family) []mutant { return f.mutants }, every, func(t *testing.T, v variant,
		bug string) {
		o := v.run(bug, true)
		t.Logf("%-64s %v", bug, o)
		if o.lost+o.muted+o.stuck == 0 {
			t.Errorf("the mutant survives: %v", o)
		}
	})
}

// TestNotRequired: what is said not to be required should be known to be so.
func TestNotRequired(t *testing.T) {
	eachMutant(t, func(f family) []mutant { return f.spare }, explorable, func(t *testing.T, v variant,
		bug string) {
		if o := v.run(bug, false); o.lost+o.muted+o.stuck > 0 {
			t.Errorf("it loses something, so make it a mutant: %v", o)
		}
	})
}

// TestComesToRest: whatever has happened, there is a way on that ends with nobody awake. Larger
// forms need more memory than this is worth.
func TestComesToRest(t *testing.T) {
	for _, f := range families {
		for _, v := range f.variants {
			id := f.id(v)
			if n, ok := recorded(id); !ok || n > small {
				continue
			}
			t.Run(id, func(t *testing.T) {
				t.Parallel()
				if n := v.trapped(""); n > 0 {
					t.Errorf("%d states lead to no rest", n)
				}
			})
		}
	}
}

// TestTraps: somebody goes round for ever.
func TestTraps(t *testing.T) {
	eachMutant(t, func(f family) []mutant { return f.traps }, every,
		func(t *testing.T, v variant, bug string) {
			if v.trapped(bug) == 0 {
				t.Error("whatever happens it can come to rest")
			}
		})
}

// chase goes round between two states, from which there is a way out or none.
type chase struct{ deviant }

func (chase) start() uint8    { return 0 }
func (chase) names() []string { return []string{"app", "one"} }

func (c chase) judge(s *uint8) verdict {
	if *s == 3 {
		return resting
	}
	return moving
}

// next goes round 1 and 2, and to rest from 0, or from 2 if it does not go round for ever.
func (c chase) next(s *uint8, x *search[uint8]) {
	for _, to := range [...][]uint8{{1, 3}, {2}, {1, 3}, {}}[*s] {
		if n := x.fork(s); c.bug == "" || *s != 2 || to != 3 {
			*n = to
			x.emit(n)
		}
	}
}

func TestTrapped(t *testing.T) {
	for bug, want := range map[string]int{"": 0, "round for ever": 2} {
		if n := form("", chase{}).trapped(bug); n != want {
			t.Errorf("%q: %d states lead to no rest, want %d", bug, n, want)
		}
	}
}

const (
	statesFile = "../../testdata/guards_states.tsv"
	pageFile   = "../../testdata/guards_models.md"
)

var (
	modelFull   = flag.Bool("model.full", false, "explore every variant")
	modelSeed   = flag.Uint64("model.seed", 0, "choose what is explored; 0: anyhow")
	modelRecord = flag.Bool("model.record", false, "note the states of what is explored")
	modelWrite  = flag.Bool("model.write", false, "write the page about the models anew")
)

// states are the numbers of states that a run found once, by the names of variants. They depend on
// nothing but the model, so that a change of it which was not meant shows here.
var states = struct {
	sync.Mutex
	rows func() map[string]string
}{rows: sync.OnceValue(func() map[string]string {
	rows := map[string]string{}
	text, _ := os.ReadFile(statesFile)
	for line := range strings.Lines(string(text)) {
		key, row, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		rows[key] = row
	}
	return rows
})}

// unended had not ended after seven minutes.
var unended = []string{"d4 reader pays"}

// recorded is how many states a variant had.
func recorded(id string) (int, bool) {
	states.Lock()
	defer states.Unlock()
	row, ok := states.rows()[id]
	row, _, _ = strings.Cut(row, "\t")
	n, _ := strconv.Atoi(row)
	return n, ok
}

// compare holds a whole exploration against what was noted, or notes it.
func compare(t *testing.T, id string, o outcome) {
	t.Helper()
	if n, ok := recorded(id); ok && n != o.states && !*modelRecord {
		t.Errorf("%d states, noted are %d: if the model was to change, run with -model.record",
			o.states, n)
	}
	if !*modelRecord {
		return
	}
	states.Lock()
	defer states.Unlock()
	rows := states.rows()
	rows[id] = fmt.Sprintf("%d\t%d\t%.1f", o.states, o.resting, o.took.Seconds())
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprintf(&b, "%s\t%s\n", k, rows[k])
	}
	shmtest.Must(t, os.WriteFile(statesFile, []byte(b.String()), 0o644))
}

const pageHead = "# The models of the protocols: what is explored, and what falls\n" + `
Made by "go test ./internal/model -run Page -model.write" from the tables beside the models
(internal/model/*_test.go) and from guards_states.tsv, where -model.record notes what a run found.
Every exploration visits each reachable state once and finds no loss, and a test compares the
number of states with the one below. The one without a number, d4 where the reader pays, had not
ended after seven minutes on a busy machine; what it is for is in d12. The larger of the others are
explored with -model.full only. The numbers are of runs on a virtual machine with two CPUs that
others used at the same time; the seconds say no more than which are large.

Where the steps stand in the code: P internal/wake/ringer.go; R1 to R4 bell.go, R5 to R9 and T
sleep.go; S set.go and domain.go; N and C channel.go; F set.go and channel.go; L cq/attach.go
and reconfigure.go; K cq/queue.go and cq/lane.go; U sleep.go (Mark) and domain.go (Consider); Q and
H ringer.go and sleep.go, K face_linux.go and internal/futex/sleepers_linux.go; C and W of
counters internal/counterbell/counterbell.go and cq/counter_wait.go; D, G and H of frames
xdp/frames.go and xdp/endpoint/receive.go; W of
lanes without room cq/writer.go; those of many, a set and the latch as of queues, with the
count in cq/wait.go; F and A of readers that follow one another cq/handover.go, writerside.go and
rendezvous.go, G peek.go; R, V and G of a look without the lock cq/read.go and
bell.go. Those of endpoints, from "Two endpoints" on, were explored before there was code, but for
meetings: M and G fabric/meet.go, N peer.go and attach.go, B receive.go and endpoint.go.

Of messages: no program needs a first grant, a quota of chunks, or a chunk that the pool keeps back
beside those of the lanes, to come to its end. A first grant saves a round trip; a quota bounds
what one silent peer holds.

Of "many, a set and the latch" forms with all steps apart were explored once, and lost nothing: two
entries in one lane in 10928600 states (12353572 where the reader pays), and one in each of two
lanes without a signal in 5568100. What is one step there, and why that hides nothing, is said
beside the model.
`

func page() string {
	var b strings.Builder
	b.WriteString(pageHead)
	for _, f := range families {
		head, rule := "| variant |", "|---|"
		if f.variants[0].payer != "" {
			head, rule = "| | variant | who pays |", "|---|---|---|"
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s states | asleep | s |\n%s---|---|---|\n", f.title, head, rule)
		for _, v := range f.variants {
			name := v.key
			if v.payer != "" {
				name = v.key + " | " + v.text + " | " + v.payer
			}
			row, ok := states.rows()[f.id(v)]
			if !ok {
				row = "\t\t"
			}
			fmt.Fprintf(&b, "| %s | %s |\n", name, strings.ReplaceAll(row, "\t", " | "))
		}
		fell := func(does string, ms []mutant) {
			if len(ms) > 0 {
				fmt.Fprintf(&b, "\n| | deviation that %s |\n|---|---|\n", does)
			}
			for _, m := range ms {
				fmt.Fprintf(&b, "| %s | %s |\n", m.base, m.bug)
			}
		}
		fell("loses something", f.mutants)
		fell("goes round for ever", f.traps)
		fell("loses nothing, in the sizes explored", f.spare)
	}
	return b.String()
}

func TestPage(t *testing.T) {
	want := page()
	if *modelWrite {
		shmtest.Must(t, os.WriteFile(pageFile, []byte(want), 0o644))
	}
	if got, err := os.ReadFile(pageFile); err != nil || string(got) != want {
		t.Errorf("the page is not what the models give: run with -model.write (%v)", err)
	}
}

func TestMain(m *testing.M) { shmtest.Main(m) }
