package soak

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Markdown writes the report as the tables of a document.
func (r *Report) Markdown(w io.Writer) {
	fmt.Fprintf(w, "Seed %d for the first round, the next one for each; %v in %d rounds on %v.\n\n",
		r.Seed, time.Duration(r.DurationNs).Round(time.Second), r.Rounds, r.Machine)
	row := func(name string, value any) { fmt.Fprintf(w, "| %s | %v |\n", name, value) }
	fmt.Fprint(w, "| | |\n|---|---|\n")
	row("operations", r.Operations)
	row("kills", r.Kills)
	row("stops (SIGSTOP, SIGCONT)", r.Stops)
	row("freezes by a control group", r.Faults.Freezes)
	row("signals", r.Faults.Signals)
	row("times without processors", r.Faults.Starves)
	row("hostile stores and messages", r.Mutations)
	row("objects checked after deaths at steps", r.Checked)
	row("published, known to the writer", r.Published)
	row("in doubt at a kill", r.InDoubt)
	row("read", r.Read)
	row("gone with a writer and its reader of another user", r.Gone)
	row("again, and marked redelivered", r.Redelivered)
	row("notice of a death through an event queue", r.NoticeNs)
	for _, kind := range slices.Sorted(maps.Keys(r.Notices)) {
		row("notice: "+kind, r.Notices[kind])
	}
	row("notices of each survivor", r.AllDuties())
	for _, kind := range slices.Sorted(maps.Keys(r.Duties)) {
		row("of each survivor: "+kind, r.Duties[kind])
	}
	for _, f := range []struct {
		what string
		n    uint64
	}{{"lost", r.Lost}, {"duplicate without a mark", r.Duplicate},
		{"unpublished and read", r.Unpublished}, {"hung", r.Hung}, {"leaked", r.Leaked},
		{"usurped from the living", r.Usurped}, {"deaths not told in 5 s", r.Unnoticed},
		{"invariants broken, of objects checked after deaths at steps", r.Broken},
		{"failed otherwise", r.Failed}, {"ended by hostile peers", r.Hostile.Panics + r.Hostile.Wild},
		{"held up by hostile peers", r.Hostile.Hangs + r.Hostile.Unbounded},
		{"entries lost to hostile peers", r.Hostile.BystanderLost},
		{"other breaches with hostile peers", r.Hostile.Untyped + r.Hostile.Leaked + r.Hostile.Failed +
			r.Hostile.KeptOut + r.Hostile.Toothless},
	} {
		row(f.what, f.n)
	}
	for _, s := range r.Skipped {
		row("skipped", s)
	}
	for _, v := range r.Violations {
		row("found", strings.ReplaceAll(v, "|", "/"))
	}
	if len(r.Steps) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%d steps killed less than %d times: %s\n", len(r.Below), r.wanted(),
		strings.Join(r.Below, ", "))
	fmt.Fprint(w, "\n| step | deaths |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(r.Steps)) {
		row(name, r.Steps[name])
	}
}
