package soak

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/hostile"
	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/internal/crash"
)

const (
	defaultRound = time.Minute
	// tortureShare of a round is for torture, in percent.
	tortureShare = 85
	// burst is how many mutations are made before the clock is looked at.
	burst = 100_000
)

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
	if os.Geteuid() != 0 {
		r.skip("hostile peers: only root can start processes of other users")
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
			err = r.hostile(ctx, seed, earlier(end, time.Now().Add(rest)))
		}
		r.Below = torture.Below(r.Steps, r.wanted())
		if err != nil { // what was found so far is worth having
			r.DurationNs, r.Machine = int64(time.Since(begin)), torture.Here()
			return r, err
		}
		r.Rounds++
		told()
	}
	r.DurationNs = int64(time.Since(begin))
	r.Machine = torture.Here()
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
		opt.Enough, opt.UntilSteps = r.aim(), r.aim()
	}
	opts := []torture.Options{opt}
	if slices.Equal(roles, casts[castDevice]) { // it mostly waits for the kernel
		opt.Seed ^= 1 << 63
		opts = append(opts, opt)
	}
	played, errs := make([]*torture.Report, len(opts)), make([]error, len(opts))
	var all sync.WaitGroup
	for i := range opts {
		all.Go(func() { played[i], errs[i] = torture.Run(ctx, opts[i]) })
	}
	all.Wait()
	r.Faults.add(f.stop())
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

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// hostile attacks until the round ends, once at least.
func (r *Report) hostile(ctx context.Context, seed uint64, end time.Time) error {
	if os.Geteuid() != 0 {
		return nil
	}
	for again := true; again; again = time.Now().Before(end) {
		h, err := hostile.Run(ctx, hostile.Options{Mutations: burst, Seed: seed})
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

// casts are the roles of rounds: few at a time come round faster, all together find what is between
// them. Those of one user are nil. Who owns a device takes long to start, so there are two of that.
// The last has all.
var casts = [][]string{{"device"}, nil, {"churner"}, {"others-writer", "others-event-writer"},
	{"set-writer"}, {"vector-user"}, {"event-writer"}, {"counter"}, {"writer"}, torture.Roles()}

const (
	castDevice = 0
	castUser   = 1
	castFirst  = 4 // so many have a round each at the beginning
	// Of so many rounds one has all roles and one those of a user; the others are chosen.
	castTurn = 6
	userTurn = 2
)

// company is a cast with the steps at which it dies.
type company struct {
	roles []string
	steps []crash.Label
}

// playable returns the casts that can play here; the last is the one with all that can.
var playable = sync.OnceValue(func() (all []company) {
	for _, roles := range able(casts, torture.Lacks) {
		all = append(all, company{roles, torture.Steps(roles)})
	}
	return all
})

// cast returns the roles of the next round. chosen says that it was for what they lack: the round
// is over when they lack nothing.
//
// A step is drawn, more likely one that lags far behind, and the smallest cast that dies at it
// plays. So the seed of a round replays the choice only with the deaths before it, and the report
// says what was played.
func (r *Report) cast(seed uint64) (roles []string, chosen bool) {
	turn, all := r.Rounds%castTurn, playable()
	switch {
	case turn == castTurn-1:
		return all[len(all)-1].roles, false
	case turn == userTurn:
		return casts[castUser], false
	case r.Rounds < castFirst:
		return all[int(r.Rounds)%len(all)].roles, false
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

// able leaves those roles out of casts that cannot take part, and casts of nobody else.
func able(casts [][]string, lacks func(string) error) (all [][]string) {
	for _, c := range casts {
		can, _ := torture.Able(c, lacks)
		if len(can) > 0 || len(c) == 0 {
			all = append(all, can)
		}
	}
	return all
}
