package soak

import (
	"io"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/internal/stage"
)

// Print writes the report for people.
func (r *Report) Print(w io.Writer) { r.sheet().Print(w) }

// Markdown writes the report as the tables of a document.
func (r *Report) Markdown(w io.Writer) { r.sheet().Markdown(w) }

func (r *Report) sheet() *stage.Sheet {
	s := &stage.Sheet{}
	s.Text("Seed %d for the first round, the next one for each; %v in %d rounds on %v.", r.Seed,
		time.Duration(r.DurationNs).Round(time.Second), r.Rounds, r.Machine)
	s.Row("operations", r.Operations)
	s.Row("kills", r.Kills)
	s.Row("stops (SIGSTOP, SIGCONT)", r.Stops)
	s.Row("freezes by a control group", r.Faults.Freezes)
	s.Row("signals", r.Faults.Signals)
	s.Row("times without processors", r.Faults.Starves)
	s.Row("hostile stores and messages", r.Mutations)
	s.Row("checked after deaths at steps", r.Checked)
	r.Tally.Sheet(s)
	r.Noticed.Sheet(s)
	r.Hostile.Sheet(s)
	s.Each("skipped", r.Skipped)
	s.Each("found", r.Violations)
	if len(r.Steps) > 0 {
		torture.SheetSteps(s, r.Steps, r.Below, r.wanted())
	}
	return s
}
