package torture

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Markdown writes the report as the tables of a document, so that what is kept of a long run says
// what the run said.
func (r *Report) Markdown(w io.Writer) {
	fmt.Fprintf(w, "Seed %d, which replays the choices and not the schedule; %v on %s.\n\n", r.Seed,
		time.Duration(r.DurationNs).Round(time.Second), r.Machine.text())
	row := func(name string, value any) { fmt.Fprintf(w, "| %s | %v |\n", name, value) }
	fmt.Fprint(w, "| | |\n|---|---|\n")
	if r.Interrupted {
		row("interrupted", "before its time: nothing was looked for at the end")
	}
	row("kills", r.Kills)
	row("stops (SIGSTOP, SIGCONT)", r.Stops)
	row("objects checked after deaths at steps", r.Checked)
	row("published, known to the writer", r.Published)
	row("in doubt at a kill", r.InDoubt)
	row("read", r.Read)
	row("gone with a writer and its reader of another user", r.Gone)
	row("again, and marked redelivered", r.Redelivered)
	for i, n := range r.Found.all() {
		row(kinds[i], *n)
	}
	row("notice through an event queue", r.NoticeNs)
	for _, kind := range slices.Sorted(maps.Keys(r.Notices)) {
		row("notice: "+kind, r.Notices[kind])
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Duties)) {
		row("of each survivor: "+kind, r.Duties[kind])
	}
	fmt.Fprint(w, "\n| role | places | kills | stops | published | read | |\n"+
		"|---|---|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(r.Roles)) {
		role := r.Roles[name]
		fmt.Fprintf(w, "| %s | %d | %d | %d | %d | %d | %s |\n", name, role.Places, role.Kills,
			role.Stops, role.Published, role.Read, counted(role.Counts))
	}
	if r.UntilSteps > 0 {
		fmt.Fprintf(w, "\n%d steps killed less than %d times: %s\n", len(r.Below), r.UntilSteps,
			strings.Join(r.Below, ", "))
	}
	fmt.Fprint(w, "\n| step | deaths |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(r.Steps)) {
		row(name, r.Steps[name])
	}
}
