package hostile

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// breach is a kind of violation in words.
type breach struct {
	what string
	n    uint64
}

// breaches lists all kinds.
func (v *Violations) breaches() []breach {
	return []breach{
		{"processes ended by a peer (panics)", v.Panics},
		{fmt.Sprintf("calls that took longer than %v", patience), v.Hangs},
		{"accesses outside of a mapping", v.Wild},
		{"entries of bystanders lost, twice or out of order", v.BystanderLost},
		{"errors that nothing can be asked of", v.Untyped},
		{"calls that did more than they may", v.Unbounded},
		{"things kept of attackers that were gone", v.Leaked},
		{fmt.Sprintf("honest newcomers kept out for longer than %v, or made to leave", keptBound),
			v.KeptOut},
		{"processes that ended otherwise than told", v.Failed},
		{"attacks that provoked nothing", v.Toothless},
	}
}

// Markdown writes the report as the tables of a document.
func (r *Report) Markdown(w io.Writer) {
	fmt.Fprintf(w, "Seed %d, which replays the choices and not the schedule; %v on %v.\n\n", r.Seed,
		time.Duration(r.DurationNs).Round(time.Second), r.Machine)
	row := func(name string, value any) { fmt.Fprintf(w, "| %s | %v |\n", name, value) }
	fmt.Fprint(w, "| | |\n|---|---|\n")
	row("hostile stores and messages", r.Mutations)
	row("lanes and readers given up, each with a typed error", r.Poisoned)
	row("meetings refused, each with a typed error", r.Refused)
	for _, b := range r.breaches() {
		row(b.what, b.n)
	}
	for _, s := range r.Skipped {
		row("skipped", s)
	}
	for _, n := range r.Notes {
		row("found", strings.ReplaceAll(n, "|", "/"))
	}
	fmt.Fprint(w, "\n| surface | between | mutations | attackers | attached | calls of the victim "+
		"| system calls of one, most | CPU of one, most | given up | refused | blamed on the peer "+
		"| of bystanders | newcomers | tried again | tried longest |\n"+
		"|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for i := range r.Surfaces {
		s := &r.Surfaces[i]
		between := "users"
		if s.Trust == "user" {
			between = "one user"
		}
		fmt.Fprintf(w, "| %s | %s | %d | %d | %d | %d | %d | %v | %d | %d | %d | %d | %d | %d | %v |\n",
			s.Name, between, s.Mutations, s.Attackers, s.Attaches, s.Calls, s.StepsMost,
			time.Duration(s.CPUMostNs).Round(10*time.Microsecond), s.Poisoned, s.Refused, s.Corrupt,
			s.Seen, s.Visits, s.TurnedAway,
			time.Duration(s.KeptMostNs).Round(10*time.Microsecond))
	}
}
