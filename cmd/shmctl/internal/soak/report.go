package soak

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/hostile"
	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/internal/stage"
)

// Options of a run.
type Options struct {
	Duration time.Duration // no round begins after it
	Round    time.Duration // how long a round is; 0 is a minute
	Seed     uint64        // of the first round; each has the next one
	Steps    bool          // kill at labelled steps too, see torture.Options
	// UntilSteps ends it after the round in which each step has killed so often; 0 does not.
	UntilSteps uint64
	Dir        string // see torture.Options
	// Progress is told after each part of a round how far it is.
	Progress func(done time.Duration, r *Report)
}

// Faults counts what was done to the machine.
type Faults struct {
	Freezes uint64 `json:"freezes"`
	Signals uint64 `json:"signals"`
	Starves uint64 `json:"starves"`
}

func (f *Faults) add(g Faults) {
	f.Freezes += g.Freezes
	f.Signals += g.Signals
	f.Starves += g.Starves
}

// Round is what was played in one.
type Round struct {
	Seed  uint64   `json:"seed"`
	Roles []string `json:"roles"` // as torture.Options has them: empty is the usual ones
	Kills uint64   `json:"kills"`
}

// usualSteps is how often each step is to kill, if nobody says it, and margin how much more of it a
// run goes for, in percent: rounds in which somebody is sent to the steps that lack least are not
// over at once.
const (
	usualSteps = 100
	margin     = 30
)

// wanted is how often each step is to kill.
func (r *Report) wanted() uint64 {
	if r.UntilSteps > 0 {
		return r.UntilSteps
	}
	return usualSteps
}

// aim is up to how many deaths a step is gone for before others.
func (r *Report) aim() uint64 {
	if r.UntilSteps > 0 {
		return r.UntilSteps
	}
	return usualSteps * (100 + margin) / 100
}

// enough tells whether there is nothing left to be done.
func (r *Report) enough() bool {
	return r.UntilSteps > 0 && r.Rounds > 0 && len(r.Below) == 0
}

// Report of a run, in which all rounds are added up. Below is of UntilSteps, or of 100.
type Report struct {
	torture.Outcome
	Rounds     uint64             `json:"rounds"`
	Operations uint64             `json:"operations"` // entries published and read, calls attacked
	Faults     Faults             `json:"faults"`
	Played     []Round            `json:"played"`    // the rounds
	Mutations  uint64             `json:"mutations"` // hostile stores and messages
	Hostile    hostile.Violations `json:"hostile"`
	// Skipped is what this machine does not have, with the reason.
	Skipped []string `json:"skipped"`
}

// ErrViolation says that a run found something; the report has what.
var ErrViolation = errors.New("soak: a promise was broken")

// Good reports whether nothing was found.
func (r *Report) Good() bool {
	return len(r.Violations) == 0 && r.Found == torture.Found{} && r.Hostile == hostile.Violations{}
}

// maxViolations bounds what is kept in words; all are counted.
const maxViolations = 40

func (r *Report) note(seed uint64, texts ...string) {
	for _, text := range texts {
		if len(r.Violations) < maxViolations {
			r.Violations = append(r.Violations, fmt.Sprintf("seed %d: %s", seed, text))
		}
	}
}

func (r *Report) skip(text string) {
	if !slices.Contains(r.Skipped, text) {
		r.Skipped = append(r.Skipped, text)
	}
}

// addTorture adds one round's part.
func (r *Report) addTorture(t *torture.Report, roles []string) {
	r.Played = append(r.Played, Round{t.Seed, append([]string{}, roles...), t.Kills})
	r.Operations += t.Published + t.Read
	r.Outcome.Add(&t.Outcome)
	r.note(t.Seed, t.Violations...)
}

// noticeMost is what survivors promise in 99 of 100 deaths, asked when there were so many that one
// moment in which the machine stood still does not decide.
const (
	noticeMost    = time.Second
	noticesEnough = 1000
)

// assessNotices finds out whether survivors knew of deaths in time, after the last round. That
// nobody was told in five seconds is found by each round, of what it demanded: so there must be
// some.
func (r *Report) assessNotices() {
	if all := r.AllDuties(); r.NoticeNs.Count >= noticesEnough && all.Told == 0 {
		r.note(r.Seed, fmt.Sprintf("of %d notices none was demanded of a survivor", r.NoticeNs.Count))
	}
	if n := r.NoticeNs; n.Count >= noticesEnough && *n.P99 >= int64(noticeMost) {
		r.note(r.Seed, fmt.Sprintf("the 99th percentile of notices is %v, want less than %v",
			time.Duration(*n.P99), noticeMost))
	}
}

// addHostile adds one round's part.
func (r *Report) addHostile(h *hostile.Report) {
	r.Mutations += h.Mutations
	for i := range h.Surfaces {
		r.Operations += h.Surfaces[i].Calls
	}
	r.Hostile.Add(&h.Violations)
	for _, s := range h.Skipped {
		r.skip("hostile: " + s)
	}
	r.note(h.Seed, h.Notes...)
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) { r.sheet().Print(w) }

// Markdown writes the report as the tables of a document.
func (r *Report) Markdown(w io.Writer) { r.sheet().Markdown(w) }

func (r *Report) sheet() *stage.Sheet {
	s := &stage.Sheet{}
	s.Text("Seed %d for the first round, the next one for each; %v in %d rounds on %v.", r.Seed,
		time.Duration(r.DurationNs).Round(time.Second), r.Rounds, r.Machine)
	s.Row("operations", r.Operations)
	s.Row("freezes by a control group", r.Faults.Freezes)
	s.Row("signals", r.Faults.Signals)
	s.Row("times without processors", r.Faults.Starves)
	s.Row("hostile stores and messages", r.Mutations)
	r.Outcome.Sheet(s)
	r.Hostile.Sheet(s)
	s.Each("skipped", r.Skipped)
	s.Each("found", r.Violations)
	if len(r.Steps) > 0 {
		r.SheetSteps(s, r.wanted())
	}
	return s
}
