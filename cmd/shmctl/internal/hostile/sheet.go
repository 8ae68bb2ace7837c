package hostile

import (
	"fmt"
	"io"
	"time"

	"github.com/shmring/shmring/internal/stage"
)

// breach is a kind of violation in words.
type breach struct {
	what string
	n    uint64
}

// breaches lists all kinds.
func (v *Violations) breaches() []breach {
	return []breach{
		{"processes ended by a peer", v.Panics},
		{fmt.Sprintf("calls of more than %v", patience), v.Hangs},
		{"accesses outside of a mapping", v.Wild},
		{"bystanders' entries lost", v.BystanderLost},
		{"errors without a type", v.Untyped},
		{"calls that did too much", v.Unbounded},
		{"things kept of attackers", v.Leaked},
		{fmt.Sprintf("newcomers kept out for %v", keptBound), v.KeptOut},
		{"processes that ended otherwise", v.Failed},
		{"attacks that provoked nothing", v.Toothless},
	}
}

// Sheet adds what was found.
func (v *Violations) Sheet(s *stage.Sheet) {
	for _, b := range v.breaches() {
		s.Row(b.what, b.n)
	}
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) { r.sheet().Print(w) }

// Markdown writes the report as the tables of a document.
func (r *Report) Markdown(w io.Writer) { r.sheet().Markdown(w) }

func (r *Report) sheet() *stage.Sheet {
	s := &stage.Sheet{}
	s.Text("Seed %d, which replays the choices and not the schedule; %v on %v.", r.Seed,
		time.Duration(r.DurationNs).Round(time.Millisecond), r.Machine)
	s.Row("hostile stores and messages", r.Mutations)
	s.Row("lanes and readers given up", r.Poisoned)
	s.Row("meetings refused", r.Refused)
	r.Violations.Sheet(s)
	s.Each("skipped", r.Skipped)
	s.Each("found", r.Notes)
	s.Table("surface", "between", "mutations", "attackers", "attached", "calls", "steps", "cpu",
		"given up", "refused", "blamed", "bystanders", "newcomers", "retries", "longest")
	for i := range r.Surfaces {
		u := &r.Surfaces[i]
		between := "users"
		if u.Trust == "user" {
			between = "one user"
		}
		s.Row(u.Name, between, u.Mutations, u.Attackers, u.Attaches, u.Calls, u.StepsMost,
			time.Duration(u.CPUMostNs), u.Poisoned, u.Refused, u.Corrupt, u.Seen, u.Visits,
			u.TurnedAway, time.Duration(u.KeptMostNs))
	}
	s.Text("Steps and cpu are the most system calls and time of a processor that one call of the " +
		"victim took; longest is how long a newcomer tried to get in.")
	return s
}
