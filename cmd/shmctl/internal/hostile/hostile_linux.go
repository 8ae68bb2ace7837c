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

// What processes count, by its key in a [Surface].
const (
	mutations  = "mutations"
	attaches   = "attaches"
	calls      = "calls"
	stepsMost  = "steps_most"
	cpuMostNs  = "cpu_most_ns"
	poisoned   = "poisoned"
	givenUp    = "given_up"
	refused    = "refused"
	ended      = "ended"
	corrupt    = "corrupt"
	foreign    = "foreign"
	sent       = "bystander_sent"
	seen       = "bystander_seen"
	visits     = "newcomers"
	turnedAway = "newcomer_retries"
	keptMostNs = "newcomer_most_ns"
	hung       = "hangs"
	lost       = "bystander_lost"
	untyped    = "untyped"
	unbounded  = "unbounded"
	leaked     = "leaked"
	keptOut    = "kept_out"
)

// Brought is what attackers did, of which there may be many, one after the other.
type Brought struct {
	Mutations uint64 `json:"mutations" count:"hostile stores and messages"`
	Attaches  uint64 `json:"attaches" count:""` // that succeeded
}

// Surface is what was done to one surface, and what came of it.
type Surface struct {
	Name       string `json:"name"`
	Trust      string `json:"trust"` // others: of different users; user: of the same one
	DurationNs int64  `json:"duration_ns"`
	Brought
	// Attackers are processes, one after the other, Calls those of the attacked side that looked at
	// hostile memory. StepsMost is system calls of one of them, to sleep, wake or order, CPUMostNs
	// the time of a processor that one took.
	Attackers uint64 `json:"attackers"`
	Calls     uint64 `json:"calls" count:""`
	StepsMost uint64 `json:"steps_most" count:""`
	CPUMostNs uint64 `json:"cpu_most_ns" count:""`
	// Poisoned are lanes and readers that were given up, each with a typed error; GivenUp the same as
	// the statistics of the queues count it.
	Poisoned uint64 `json:"poisoned" count:""`
	GivenUp  uint64 `json:"given_up" count:""`
	Refused  uint64 `json:"refused" count:""` // meetings that ended with a typed error
	Ended    uint64 `json:"ended" count:""`   // other typed errors, as that of a peer that closed
	Corrupt  uint64 `json:"corrupt" count:""` // of all errors, those that blame a peer
	Foreign  uint64 `json:"foreign" count:""` // entries of attackers that were read
	Sent     uint64 `json:"bystander_sent" count:""`
	Seen     uint64 `json:"bystander_seen" count:""`
	// Visits are honest newcomers that came, did their work and left, TurnedAway how often they had to
	// try again, KeptMostNs how long one tried to get in at most.
	Visits     uint64 `json:"newcomers" count:""`
	TurnedAway uint64 `json:"newcomer_retries" count:""`
	KeptMostNs uint64 `json:"newcomer_most_ns" count:""`
	Violations
}

// Violations counts what must not be. The bounds in words are patience and keptBound.
type Violations struct {
	Panics        uint64 `json:"panics" count:"processes ended by a peer"`
	Hangs         uint64 `json:"hangs" count:"calls that took more than 1m0s"`
	Wild          uint64 `json:"wild" count:"accesses outside of a mapping"`
	BystanderLost uint64 `json:"bystander_lost" count:"bystanders' entries lost"`
	// Untyped are those that nothing can be asked of.
	Untyped   uint64 `json:"untyped" count:"errors without a type"`
	Unbounded uint64 `json:"unbounded" count:"calls that did unbounded work"`
	Leaked    uint64 `json:"leaked" count:"resources of attackers not given back"`
	// KeptOut are honest newcomers that did not get in, or had to leave.
	KeptOut uint64 `json:"kept_out" count:"newcomers kept out for 20s"`
	// Failed are processes that ended otherwise than told.
	Failed uint64 `json:"failed" count:"processes that failed"`
	// Toothless are attacks that so proved nothing.
	Toothless uint64 `json:"toothless" count:"attacks that provoked nothing"`
}

// Report of a run.
type Report struct {
	Seed       uint64 `json:"seed"`
	DurationNs int64  `json:"duration_ns"`
	Mutations  uint64 `json:"mutations" count:"hostile stores and messages"`
	Poisoned   uint64 `json:"poisoned" count:"lanes and readers given up"`
	Refused    uint64 `json:"refused" count:"meetings refused"`
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
func (r *Report) Good() bool { return r.Violations == Violations{} }

// maxNotes bounds what is kept in words; all violations are counted.
const maxNotes = 20

func (r *Report) note(format string, args ...any) {
	if len(r.Notes) < maxNotes {
		r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
	}
}

// Sheet is the report for people, or as a document.
func (r *Report) Sheet() *stage.Sheet {
	s := &stage.Sheet{}
	s.Text("Seed %d, which replays the choices and not the schedule; %v on %v.", r.Seed,
		time.Duration(r.DurationNs).Round(time.Millisecond), r.Machine)
	s.Counts(r)
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
