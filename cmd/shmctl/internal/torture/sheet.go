package torture

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shmring/shmring/internal/stage"
)

// Print writes the report for people.
func (r *Report) Print(w io.Writer) { r.sheet().Print(w) }

// Markdown writes the report as the tables of a document, so that what is kept of a long run says
// what the run said.
func (r *Report) Markdown(w io.Writer) { r.sheet().Markdown(w) }

func (r *Report) sheet() *stage.Sheet {
	s := &stage.Sheet{}
	s.Text("Seed %d, which replays the choices and not the schedule; %v on %v.", r.Seed,
		time.Duration(r.DurationNs).Round(time.Millisecond), r.Machine)
	if r.Interrupted {
		s.Row("interrupted", "before its time: nothing was looked for at the end")
	}
	s.Row("kills", r.Kills)
	s.Row("stops (SIGSTOP, SIGCONT)", r.Stops)
	s.Row("checked after deaths at steps", r.Checked)
	r.Tally.Sheet(s)
	r.Noticed.Sheet(s)
	s.Each("found", r.Violations)
	s.Table("role", "places", "starts", "kills", "stops", "published", "read", "counts")
	for _, name := range slices.Sorted(maps.Keys(r.Roles)) {
		role := r.Roles[name]
		s.Row(name, role.Places, role.Starts, role.Kills, role.Stops, role.Published, role.Read,
			counted(role.Counts))
	}
	SheetSteps(s, r.Steps, r.Below, r.UntilSteps)
	return s
}

// Sheet adds what was counted.
func (t *Tally) Sheet(s *stage.Sheet) {
	s.Row("published", t.Published)
	s.Row("in doubt at a kill", t.InDoubt)
	s.Row("read", t.Read)
	s.Row("again, and marked", t.Redelivered)
	s.Row("gone with writer and reader", t.Gone)
	for i, n := range t.Found.all() {
		s.Row(kinds[i], *n)
	}
}

// Sheet adds how long it took to notice deaths, and of how many that was demanded.
func (n *Noticed) Sheet(s *stage.Sheet) {
	s.Row("noticed", n.NoticeNs)
	for _, kind := range slices.Sorted(maps.Keys(n.Notices)) {
		s.Row("noticed: "+kind, n.Notices[kind])
	}
	s.Row("survivors", n.AllDuties())
	for _, kind := range slices.Sorted(maps.Keys(n.Duties)) {
		s.Row("survivors: "+kind, n.Duties[kind])
	}
}

// SheetSteps adds how often each step killed, if there are steps, and which were to kill more.
func SheetSteps(s *stage.Sheet, steps map[string]uint64, below []string, wanted uint64) {
	if wanted > 0 {
		s.Text("%d steps killed less than %d times: %s", len(below), wanted, strings.Join(below, ", "))
	}
	if len(steps) == 0 {
		return
	}
	s.Table("step", "deaths")
	for _, name := range slices.Sorted(maps.Keys(steps)) {
		s.Row(name, steps[name])
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
