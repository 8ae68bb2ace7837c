package torture

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Print writes the report for people.
func (r *Report) Print(w io.Writer) {
	row := func(name string, format string, args ...any) {
		fmt.Fprintf(w, "%-13s%s\n", name, fmt.Sprintf(format, args...))
	}
	row("seed", "%d (replays the choices, not the schedule)", r.Seed)
	row("time", "%v", time.Duration(r.DurationNs).Round(time.Millisecond))
	if r.Interrupted {
		row("interrupted", "what was found until then")
	}
	row("kills", "%d, and %d stops", r.Kills, r.Stops)
	row("published", "%d, and %d in doubt at a kill", r.Published, r.InDoubt)
	row("read", "%d, and %d again, marked", r.Read, r.Redelivered)
	row("gone", "%d, with a writer and its reader of another user; and sends of dead applications",
		r.Gone)
	for i, n := range r.Found.all() {
		row(kinds[i], "%d", *n)
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Notices)) {
		row("notice", "%v (%s)", r.Notices[kind], kind)
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Duties)) {
		row("survivors", "%v (%s)", r.Duties[kind], kind)
	}
	row("machine", "%s", r.Machine.text())
	fmt.Fprintf(w, "\n%-16s%7s%8s%8s%7s%11s%11s  %s\n", "ROLE", "PLACES", "STARTS", "KILLS", "STOPS",
		"PUBLISHED", "READ", "COUNTS")
	for _, name := range slices.Sorted(maps.Keys(r.Roles)) {
		role := r.Roles[name]
		fmt.Fprintf(w, "%-16s%7d%8d%8d%7d%11d%11d  %s\n", name, role.Places, role.Starts, role.Kills,
			role.Stops, role.Published, role.Read, counted(role.Counts))
	}
	if len(r.Steps) > 0 {
		fmt.Fprintf(w, "\nsteps: %s\n", counted(r.Steps))
	}
	if r.UntilSteps > 0 {
		fmt.Fprintf(w, "%d steps killed less than %d times: %s\n", len(r.Below), r.UntilSteps,
			strings.Join(r.Below, ", "))
	}
	for _, v := range r.Violations {
		fmt.Fprintln(w, v)
	}
}

// counted lists counts by name.
func counted(counts map[string]uint64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(parts, ", ")
}
