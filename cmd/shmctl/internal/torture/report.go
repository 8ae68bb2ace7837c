package torture

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/shmring/shmring/internal/crash"
)

const toolName = "torture"

// Options of a run.
type Options struct {
	Duration time.Duration // ends the run; 0 is until Kills and UntilSteps
	Kills    uint64        // ends it after so many; 0 is until Duration
	// UntilSteps ends it when each step that its roles can die at has killed so often, those of
	// Before included, and there were Kills. The program must be built with the tag shmring_steps,
	// and Steps set.
	UntilSteps uint64
	// Enough is when nobody is sent to a step any more that has killed so often, those of Before
	// included; 0 is UntilSteps.
	Enough uint64
	Seed   uint64
	Steps  bool // kill at steps too; needs the tag
	// Before is how often steps killed in earlier runs: those that did seldom are chosen more often.
	// The seed replays the choice of steps only with the same Before.
	Before map[string]uint64
	Roles  []string // that take part, with what they need; none is the usual ones
	Trust  string   // of the queues that are met over sockets: TrustBoth, which is "", or one kind
	Dir    string   // where the directory of the run is made; "" is the default directory
	// Progress is told now and then how far it is, with a report that does not change any more.
	Progress func(done time.Duration, r *Report)

	// spoil makes a process do what must be found: for tests of the torture itself.
	spoil string
	// passed is told how often steps were passed, as far as is known.
	passed map[crash.Label]uint64
}

// Kinds of Options.Trust.
const (
	TrustBoth = "both"
	SameUser  = "user"
	CrossUser = "others"
)

// Kinds of broken promises.
const (
	kindLost        = "lost"
	kindDuplicate   = "duplicate"
	kindUnpublished = "unpublished"
	kindHung        = "hung"
	kindLeaked      = "leaked"
	kindUsurped     = "usurped"
	kindUnnoticed   = "unnoticed"
	kindBroken      = "broken"
	kindFailed      = "failed"
)

// Tally is what a role, or a run, went through and what was found.
type Tally struct {
	Published   uint64 `json:"published"`
	InDoubt     uint64 `json:"in_doubt"`
	Read        uint64 `json:"read"`
	Redelivered uint64 `json:"redelivered"`
	// Gone is what was published between users and not read when both had died: it was in their
	// memory, which has no name, and nowhere else.
	Gone uint64 `json:"gone_with_both"`
	Found
}

// Add adds another one.
func (t *Tally) Add(other *Tally) {
	t.Published += other.Published
	t.InDoubt += other.InDoubt
	t.Read += other.Read
	t.Redelivered += other.Redelivered
	t.Gone += other.Gone
	t.Found.plus(&other.Found)
}

// Found counts broken promises.
type Found struct {
	Lost        uint64 `json:"lost"`
	Duplicate   uint64 `json:"duplicate"`
	Unpublished uint64 `json:"unpublished"`
	Hung        uint64 `json:"hung"`
	Leaked      uint64 `json:"leaked"`
	Usurped     uint64 `json:"usurped"`
	Unnoticed   uint64 `json:"unnoticed"`
	Broken      uint64 `json:"broken"` // invariants of objects
	Failed      uint64 `json:"failed"`
}

func (f *Found) all() []*uint64 {
	return []*uint64{&f.Lost, &f.Duplicate, &f.Unpublished, &f.Hung, &f.Leaked, &f.Usurped,
		&f.Unnoticed, &f.Broken, &f.Failed}
}

// kinds are the names of Found.all.
var kinds = []string{kindLost, kindDuplicate, kindUnpublished, kindHung, kindLeaked, kindUsurped,
	kindUnnoticed, kindBroken, kindFailed}

// add counts n of a kind. What is of no kind is a failure of the process that says so.
func (f *Found) add(kind string, n uint64) {
	i := slices.Index(kinds, kind)
	if i < 0 {
		i = len(kinds) - 1
	}
	*f.all()[i] += n
}

func (f *Found) plus(other *Found) {
	for i, n := range f.all() {
		*n += *other.all()[i]
	}
}

// sum is how many there are.
func (f *Found) sum() (n uint64) {
	for _, k := range f.all() {
		n += *k
	}
	return n
}

// RoleReport is what one kind of process did.
type RoleReport struct {
	Places int    `json:"places"` // how many at once
	Starts uint64 `json:"starts"`
	Kills  uint64 `json:"kills"`
	Stops  uint64 `json:"stops"`
	Tally
	// Counts are what only this role has, by name.
	Counts map[string]uint64 `json:"counts"`
}

// Report of a run.
type Report struct {
	Seed       uint64 `json:"seed"`
	DurationNs int64  `json:"duration_ns"`
	// Interrupted says that the run ended before its time. Then all its processes were killed in
	// the middle, and what may be left at the end was not looked for.
	Interrupted bool   `json:"interrupted"`
	Kills       uint64 `json:"kills"`
	Stops       uint64 `json:"stops"`
	Checked     uint64 `json:"checked"` // objects, after deaths at steps
	Tally
	Noticed
	Roles      map[string]*RoleReport `json:"roles"`
	Steps      map[string]uint64      `json:"steps"` // kills by step; null without steps
	UntilSteps uint64                 `json:"until_steps"`
	Below      []string               `json:"below"` // steps that killed less often than UntilSteps
	Violations []string               `json:"violations"`
	Machine    Machine                `json:"machine"`
}

// ErrViolation says that a run found something; the report has what.
var ErrViolation = errors.New("torture: a promise was broken")

// Good reports whether nothing was found.
func (r *Report) Good() bool { return r.Found.sum() == 0 && len(r.Violations) == 0 }

// maxViolations bounds what is kept in words; all are counted.
const maxViolations = 20

func (r *Report) note(format string, args ...any) {
	if len(r.Violations) < maxViolations {
		r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
	}
}

// clone returns a copy that has nothing in common with r that changes while a run is on.
func (r *Report) clone() *Report {
	c := *r
	c.Steps, c.Violations = maps.Clone(r.Steps), slices.Clone(r.Violations)
	c.Roles = map[string]*RoleReport{}
	for name, role := range r.Roles {
		one := *role
		one.Counts = maps.Clone(role.Counts)
		c.Roles[name] = &one
	}
	return &c
}

// total makes the counts of the run of those of its roles.
func (r *Report) total() {
	r.Tally = Tally{}
	for _, role := range r.Roles {
		r.Tally.Add(&role.Tally)
	}
}

// Below returns the steps of a report that killed less often than n, in the order of crash.Labels.
func Below(steps map[string]uint64, n uint64) []string {
	below := []string{}
	for _, l := range crash.Labels() {
		if killed, ok := steps[l.String()]; ok && killed < n {
			below = append(below, l.String())
		}
	}
	return below
}
