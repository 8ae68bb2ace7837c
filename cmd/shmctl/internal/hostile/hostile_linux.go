package hostile

import (
	"errors"
	"fmt"
	"time"

	"github.com/shmring/shmring/internal/stage"
)

// patience is how long anybody waits for anything that must come. It is less only in tests of what
// has to be found.
var patience = time.Minute

// keptBound is how long an honest process may have to try until it is let in, while others attack:
// a thousand times what it takes. It is less in tests of what must be found.
var keptBound = 20 * time.Second

const toolName = "hostile"

// Options of a run.
type Options struct {
	Mutations uint64   // at least so many in all; 0 is a million
	Seed      uint64   // of the choices
	Surfaces  []string // names of those to attack; none stands for all
	// Progress is told now and then how far it is.
	Progress func(r *Report)

	// spoil has a process do what must be found: for tests of the run itself.
	spoil string
}

// Surface is what was done to one surface, and what came of it.
type Surface struct {
	Name       string `json:"name"`
	Trust      string `json:"trust"` // others: of different users; user: of the same one
	DurationNs int64  `json:"duration_ns"`
	Mutations  uint64 `json:"mutations"`   // hostile stores and messages
	Attaches   uint64 `json:"attaches"`    // of attackers that succeeded
	Attackers  uint64 `json:"attackers"`   // processes, one after the other
	Calls      uint64 `json:"calls"`       // of the attacked side, that looked at hostile memory
	StepsMost  uint64 `json:"steps_most"`  // system calls of one call, to sleep, wake or order
	CPUMostNs  uint64 `json:"cpu_most_ns"` // time of a processor that one call took
	Poisoned   uint64 `json:"poisoned"`    // lanes and readers given up, each with a typed error
	GivenUp    uint64 `json:"given_up"`    // the same as the statistics of the queues count it
	Refused    uint64 `json:"refused"`     // meetings that ended with a typed error
	Ended      uint64 `json:"ended"`       // other typed errors, as that of a peer that closed
	Corrupt    uint64 `json:"corrupt"`     // of all errors, those that blame what a peer wrote or said
	Foreign    uint64 `json:"foreign"`     // entries of attackers that were read
	Sent       uint64 `json:"bystander_sent"`
	Seen       uint64 `json:"bystander_seen"`
	Visits     uint64 `json:"newcomers"`        // honest ones that came, did their work and left
	TurnedAway uint64 `json:"newcomer_retries"` // how often they had to try again
	KeptMostNs uint64 `json:"newcomer_most_ns"` // how long one tried to get in at most
	Violations
}

// Violations counts what must not be.
type Violations struct {
	Panics        uint64 `json:"panics"`
	Hangs         uint64 `json:"hangs"`
	Wild          uint64 `json:"wild"` // accesses outside of a mapping
	BystanderLost uint64 `json:"bystander_lost"`
	Untyped       uint64 `json:"untyped"` // errors that nothing can be asked of
	Unbounded     uint64 `json:"unbounded"`
	Leaked        uint64 `json:"leaked"`
	KeptOut       uint64 `json:"kept_out"`  // honest newcomers that did not get in, or had to leave
	Failed        uint64 `json:"failed"`    // processes that ended otherwise than told
	Toothless     uint64 `json:"toothless"` // attacks that provoked nothing, and so proved nothing
}

func (v *Violations) sum() (n uint64) {
	for _, b := range v.breaches() {
		n += *b.n
	}
	return n
}

// Add adds another one.
func (v *Violations) Add(w *Violations) {
	for i, b := range w.breaches() {
		*v.breaches()[i].n += *b.n
	}
}

// Report of a run.
type Report struct {
	Seed       uint64 `json:"seed"`
	DurationNs int64  `json:"duration_ns"`
	Mutations  uint64 `json:"mutations"`
	Poisoned   uint64 `json:"poisoned"`
	Refused    uint64 `json:"refused"`
	Violations
	Surfaces []Surface `json:"surfaces"`
	// Skipped are surfaces that this machine does not have, with the reason.
	Skipped []string      `json:"skipped"`
	Notes   []string      `json:"notes"` // the first violations in words
	Machine stage.Machine `json:"machine"`
}

// ErrViolation says that a run found something; the report has what.
var ErrViolation = errors.New("hostile: a promise was broken")

// Good reports whether nothing was found.
func (r *Report) Good() bool { return r.Violations.sum() == 0 }

// maxNotes bounds what is kept in words; all violations are counted.
const maxNotes = 20

func (r *Report) note(format string, args ...any) {
	if len(r.Notes) < maxNotes {
		r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
	}
}

func (r *Report) add(s *Surface) {
	r.Surfaces = append(r.Surfaces, *s)
	r.Mutations += s.Mutations
	r.Poisoned += s.Poisoned
	r.Refused += s.Refused
	r.Violations.Add(&s.Violations)
}

// breach is a kind of violation in words, and how often it was.
type breach struct {
	what string
	n    *uint64
}

// breaches lists all kinds.
func (v *Violations) breaches() []breach {
	return []breach{
		{"processes ended by a peer", &v.Panics},
		{fmt.Sprintf("calls that took more than %v", patience), &v.Hangs},
		{"accesses outside of a mapping", &v.Wild},
		{"bystanders' entries lost", &v.BystanderLost},
		{"errors without a type", &v.Untyped},
		{"calls that did unbounded work", &v.Unbounded},
		{"resources of attackers not given back", &v.Leaked},
		{fmt.Sprintf("newcomers kept out for %v", keptBound), &v.KeptOut},
		{"processes that failed", &v.Failed},
		{"attacks that provoked nothing", &v.Toothless},
	}
}

// AddTo adds what was found.
func (v *Violations) AddTo(s *stage.Sheet) {
	for _, b := range v.breaches() {
		s.Row(b.what, *b.n)
	}
}

// Sheet is the report for people, or as a document.
func (r *Report) Sheet() *stage.Sheet {
	s := &stage.Sheet{}
	s.Text("Seed %d, which replays the choices and not the schedule; %v on %v.", r.Seed,
		time.Duration(r.DurationNs).Round(time.Millisecond), r.Machine)
	s.Row("hostile stores and messages", r.Mutations)
	s.Row("lanes and readers given up", r.Poisoned)
	s.Row("meetings refused", r.Refused)
	r.AddTo(s)
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
