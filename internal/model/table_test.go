package model

import (
	"math"
	"slices"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

// families are all that is explored, in the order of the page.
var families = []family{queues, others, counters, frames, follows, glances, many, rooms, rings,
	wraps, ends, feeders}

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
	run     func(bug any, firstLoss bool) outcome
	trace   func(bug any) string
	trapped func(bug any) int
}

// of makes explored of a model that is told its deviation, or the zero value.
func of[S comparable, B any](with func(B) protocol[S]) explored {
	p := func(bug any) protocol[S] {
		b, _ := bug.(B)
		return with(b)
	}
	return explored{
		run:     func(bug any, firstLoss bool) outcome { return explore(p(bug), firstLoss) },
		trace:   func(bug any) string { return interleaving(p(bug)) },
		trapped: func(bug any) int { return trapped(p(bug)) },
	}
}

func form[S comparable](key string, with func(bug string) protocol[S]) variant {
	return variant{key: key, explored: of(with)}
}

// mutant is a deviation of the variant base.
type mutant struct {
	base  string
	bug   any
	text  string
	plain bool // it is about store buffers, which are there if the reader pays
}

// on makes mutants of deviations whose names say it all.
func on(base string, bugs ...string) (ms []mutant) {
	for _, b := range bugs {
		ms = append(ms, mutant{base: base, bug: b, text: b})
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
		if v.key == m.base && (!m.plain || v.payer != producerPays) {
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

// affordable tells whether a variant is explored whole: what is, depends on its number of states.
func affordable(t *testing.T, id string) bool {
	most := 400_000
	switch {
	case *modelFull:
		most = math.MaxInt
	case testing.Short():
		most = 40_000
	}
	n, ok := recorded(id)
	if !ok && !*modelRecord && !slices.Contains(unended, id) {
		t.Errorf("the states of %s are not recorded: run with -model.record", id)
	}
	return n <= most && (ok || *modelFull || *modelRecord)
}

func TestLosesNothing(t *testing.T) {
	shmtest.Conforms(t)
	for _, f := range families {
		for _, v := range f.variants {
			id := f.id(v)
			if !affordable(t, id) {
				continue
			}
			t.Run(id, func(t *testing.T) {
				t.Parallel()
				o := v.run(nil, false)
				t.Logf("%-32s %v", id, o)
				compare(t, id, o)
				if o.resting == 0 || o.stuck > 0 {
					t.Errorf("%d states asleep, %d stuck", o.resting, o.stuck)
				}
				if o.lost+o.muted > 0 {
					t.Errorf("lost %d, muted %d; shortest run:%s", o.lost, o.muted, v.trace(nil))
				}
			})
		}
	}
}

func TestMutantsFall(t *testing.T) {
	for _, f := range families {
		for _, m := range f.mutants {
			for _, v := range f.bases(t, m) {
				if testing.Short() && !affordable(t, f.id(v)) {
					continue
				}
				t.Run(f.id(v)+"/"+m.text, func(t *testing.T) {
					t.Parallel()
					o := v.run(m.bug, true)
					t.Logf("%-64s %v", m.text, o)
					if o.lost+o.muted == 0 {
						t.Errorf("the mutant survives: %v", o)
					}
				})
			}
		}
	}
}

// TestNotRequired: what is said not to be required should be known to be so.
func TestNotRequired(t *testing.T) {
	for _, f := range families {
		for _, m := range f.spare {
			for _, v := range f.bases(t, m) {
				if !affordable(t, f.id(v)) {
					continue
				}
				t.Run(f.id(v)+"/"+m.text, func(t *testing.T) {
					t.Parallel()
					if o := v.run(m.bug, false); o.lost+o.muted > 0 {
						t.Errorf("it loses something, so make it a mutant: %v", o)
					}
				})
			}
		}
	}
}
