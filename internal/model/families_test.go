package model

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

// family is a group of variants of one small model, with a section of the page of its own.
type family struct {
	title    string
	variants []familyVariant
	mutants  []familyMutant
	spare    []familyMutant // these lose nothing, so that the step is not required
}

// familyVariant explores, with a deviation or none.
type familyVariant struct {
	name  string
	size  size
	run   func(deviation string, firstLoss bool) outcome
	trace func(deviation string) string
}

// familyMutant names its deviation as the table does.
type familyMutant struct {
	base, text string
	size       size
}

var families []family

// familyOf makes a variant of a model that is told its deviation.
func familyOf[S comparable](name string, z size, with func(deviation string) protocol[S],
) familyVariant {
	return familyVariant{name: name, size: z,
		run:   func(d string, first bool) outcome { return explore(with(d), first) },
		trace: func(d string) string { return interleaving(with(d)) }}
}

// named is implemented by models whose steps have numbers of their own.
type named interface{ stepName(at step) string }

func stepName[S comparable](p protocol[S], at step) string {
	if n, ok := p.(named); ok {
		return n.stepName(at)
	}
	return at.String()
}

func (f *family) variant(t *testing.T, name string) familyVariant {
	t.Helper()
	for _, v := range f.variants {
		if v.name == name {
			return v
		}
	}
	t.Fatalf("no variant %q", name)
	return familyVariant{}
}

func TestModelFamiliesLoseNothing(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	for _, f := range families {
		for _, v := range f.variants {
			if v.size > modelSize() {
				continue
			}
			t.Run(f.title+"/"+v.name, func(t *testing.T) {
				t.Parallel()
				o := v.run("", false)
				t.Logf("%-32s %v", v.name, o)
				compare(t, f.title+": "+v.name, o)
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

func TestModelFamiliesCatchMutants(t *testing.T) {
	for _, f := range families {
		for _, m := range f.mutants {
			if m.size > modelSize() {
				continue
			}
			t.Run(f.title+"/"+m.base+"/"+m.text, func(t *testing.T) {
				t.Parallel()
				o := f.variant(t, m.base).run(m.text, !*modelFull)
				t.Logf("%-64s %v", m.text, o)
				if o.lost+o.muted == 0 {
					t.Errorf("the mutant survives: %v", o)
				}
			})
		}
	}
}

// TestModelFamiliesNotRequired: what is said not to be required should be known to be so.
func TestModelFamiliesNotRequired(t *testing.T) {
	for _, f := range families {
		for _, m := range f.spare {
			o := f.variant(t, m.base).run(m.text, false)
			t.Logf("%-64s %v", m.text, o)
			if o.lost+o.muted > 0 {
				t.Errorf("%s: it loses something: make it a mutant", m.text)
			}
		}
	}
}

// section is what the page says of a family.
func (f *family) section(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n| variant | states | asleep | s |\n|---|---|---|---|\n", f.title)
	for _, v := range f.variants {
		fmt.Fprintf(b, "| %s %s\n", v.name, cell(f.title+": "+v.name))
	}
	b.WriteString("\n| | deviation that loses something |\n|---|---|\n")
	for _, m := range f.mutants {
		fmt.Fprintf(b, "| %s | %s |\n", m.base, m.text)
	}
	if len(f.spare) > 0 {
		b.WriteString("\n| | deviation that loses nothing |\n|---|---|\n")
	}
	for _, m := range f.spare {
		fmt.Fprintf(b, "| %s | %s |\n", m.base, m.text)
	}
}
