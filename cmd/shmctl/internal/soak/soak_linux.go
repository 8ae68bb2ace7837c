package soak

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/hostile"
	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/scratch"
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
	Freezes uint64 `json:"freezes" count:"freezes by a control group"`
	Signals uint64 `json:"signals" count:""`
	Starves uint64 `json:"starves" count:"times without processors"`
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

func (r *Report) note(seed uint64, texts ...string) {
	for _, text := range texts {
		r.Violations.Add("seed %d: %s", seed, text)
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
	stage.Add(&r.Hostile, &h.Violations)
	for _, s := range h.Skipped {
		r.skip("hostile: " + s)
	}
	r.note(h.Seed, h.Notes...)
}

// Sheet is the report for people, or as a document.
func (r *Report) Sheet() *stage.Sheet {
	s := &stage.Sheet{}
	s.Text("Seed %d for the first round, the next one for each; %v in %d rounds on %v.", r.Seed,
		time.Duration(r.DurationNs).Round(time.Second), r.Rounds, r.Machine)
	s.Row("operations", r.Operations)
	s.Counts(&r.Faults)
	s.Row("hostile stores and messages", r.Mutations)
	r.AddTo(s)
	s.Counts(&r.Hostile)
	s.Each("skipped", r.Skipped)
	s.Each("found", r.Violations)
	if len(r.Steps) > 0 {
		r.SheetSteps(s, r.wanted())
	}
	return s
}

const (
	defaultRound = time.Minute
	// tortureShare of a round is for torture, in percent.
	tortureShare = 85
	// Before the clock is looked at, so many mutations are made: fewer when little time is left.
	burstMost, burstLeast = 5_000, 50
	burstPerMs            = 1
)

// burst is how many mutations are made in one go.
func burst(left time.Duration) uint64 {
	return uint64(max(burstLeast, min(burstMost, left.Milliseconds()*burstPerMs)))
}

// Run soaks. The error is ErrViolation if anything was found; after another one, as that of the
// context, the report says how far it came.
//
// With steps rounds are chosen for those that killed least often in the rounds before, and each
// aims at them.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Round == 0 {
		o.Round = defaultRound
	}
	var steps []crash.Label
	if o.Steps {
		steps = crash.Labels()
	}
	r := &Report{Outcome: torture.NewOutcome(o.Seed, o.UntilSteps, steps), Skipped: []string{},
		Played: []Round{}}
	begin := time.Now()
	told := func() {
		if o.Progress != nil {
			o.Progress(time.Since(begin), r)
		}
	}
	if err := scratch.Others(os.TempDir()); err != nil {
		r.skip("hostile peers: " + err.Error())
	}
	_, missing := torture.Able(torture.Roles(), torture.Lacks)
	for _, text := range missing {
		r.skip("torture: " + text)
	}
	for seed := o.Seed; time.Since(begin) < o.Duration && !r.enough(); seed++ {
		from := time.Now()
		end := from.Add(min(o.Round, o.Duration-time.Since(begin)))
		err := r.torture(ctx, o, seed, time.Until(end)*tortureShare/100)
		told()
		if err == nil {
			// Less, if torture came to its end before.
			rest := time.Since(from) * (100 - tortureShare) / tortureShare
			err = r.hostile(ctx, seed, time.Now().Add(min(time.Until(end), rest)))
		}
		r.Below = torture.Below(r.Steps, r.wanted())
		if err != nil { // what was found so far is worth having
			r.DurationNs, r.Machine = int64(time.Since(begin)), stage.Here()
			return r, err
		}
		r.Rounds++
		told()
	}
	r.DurationNs = int64(time.Since(begin))
	r.Machine = stage.Here()
	r.assessNotices()
	if !r.Good() {
		return r, ErrViolation
	}
	return r, nil
}

// torture kills for a while, with faults; around two device processes at once. Hostile peers have
// the machine to themselves: what their victims do in a call is counted, and signals would count.
func (r *Report) torture(ctx context.Context, o Options, seed uint64, d time.Duration) error {
	f := startFaults(seed, r.skip)
	roles, chosen := r.cast(seed)
	opt := torture.Options{Duration: max(d, time.Second), Seed: seed, Steps: o.Steps, Dir: o.Dir,
		Before: r.Steps, Roles: roles}
	if chosen {
		opt.UntilSteps = r.aim()
	}
	opts := []torture.Options{opt}
	if slices.Equal(roles, []string{"device"}) { // it mostly waits for the kernel
		opt.Seed ^= 1 << 63
		opts = append(opts, opt)
	}
	played, errs := make([]*torture.Report, len(opts)), make([]error, len(opts))
	var all sync.WaitGroup
	for i := range opts {
		all.Go(func() { played[i], errs[i] = torture.Run(ctx, opts[i]) })
	}
	all.Wait()
	stage.Add(&r.Faults, new(f.stop()))
	for i, t := range played {
		if t == nil {
			continue
		}
		r.addTorture(t, roles)
		if !t.Interrupted {
			errs[i] = nil // the report has it
		}
	}
	return errors.Join(errs...)
}

// hostile attacks one surface after the other until the round ends, one at least. The seed says
// which is the first.
func (r *Report) hostile(ctx context.Context, seed uint64, end time.Time) error {
	if scratch.Others(os.TempDir()) != nil {
		return nil
	}
	names, had := hostile.Names(), r.Mutations
	first := rand.New(rand.NewPCG(seed, 2)).IntN(len(names))
	for i := 0; time.Now().Before(end) || r.Mutations == had && i < len(names); i++ {
		h, err := hostile.Run(ctx, hostile.Options{Mutations: burst(time.Until(end)), Seed: seed,
			Surfaces: names[(first+i)%len(names):][:1]})
		if errors.Is(err, errors.ErrUnsupported) {
			r.skip("hostile peers: " + err.Error())
			return nil
		}
		if h == nil {
			return err
		}
		r.addHostile(h)
	}
	return nil
}

// castTurn is of how many rounds one has all roles and one those of a user; the others are chosen,
// since few at a time come round faster and all together find what is between them.
const (
	castTurn = 6
	userTurn = 2
)

// company is a cast with the steps at which it dies.
type company struct {
	roles []string
	steps []crash.Label
}

// playable returns a cast for each role that can play here; the last has all.
var playable = sync.OnceValue(func() (all []company) {
	able, _ := torture.Able(torture.Roles(), torture.Lacks)
	for _, name := range able {
		all = append(all, company{[]string{name}, torture.Steps([]string{name})})
	}
	return append(all, company{able, torture.Steps(able)})
})

// cast returns the roles of the next round. chosen says that it was for what they lack: the round
// is over when they lack nothing.
//
// A step is drawn, more likely one that lags far behind, and the smallest cast that dies at it
// plays. So the seed of a round replays the choice only with the deaths before it, and the report
// says what was played.
func (r *Report) cast(seed uint64) (roles []string, chosen bool) {
	all := playable()
	switch r.Rounds % castTurn {
	case 0:
		return all[len(all)-1].roles, false
	case userTurn:
		return nil, false
	}
	rnd := rand.New(rand.NewPCG(seed, 2))
	rare := torture.Draw(rnd, crash.Labels(), r.aim(), func(l crash.Label) uint64 {
		killed, ok := r.Steps[l.String()]
		if _, played := smallest(all, l); !ok || !played {
			return math.MaxUint64
		}
		return killed
	})
	if roles, chosen = smallest(all, rare); !chosen {
		roles = all[rnd.IntN(len(all))].roles
	}
	return roles, chosen
}

// smallest returns the cast with the fewest steps that dies at one, if any does.
func smallest(all []company, at crash.Label) (best []string, ok bool) {
	fewest := 0
	for _, c := range all {
		if slices.Contains(c.steps, at) && (!ok || len(c.steps) < fewest) {
			best, fewest, ok = c.roles, len(c.steps), true
		}
	}
	return best, ok
}
