package soak

import (
	"context"
	"errors"
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
	r := &Report{Seed: o.Seed, Skipped: []string{}, Violations: []string{}, Played: []Round{},
		Below: []string{}, UntilSteps: o.UntilSteps,
		Noticed: torture.Noticed{Notices: map[string]torture.Notice{},
			Duties: map[string]torture.Duties{}}}
	if o.Steps {
		r.Steps = map[string]uint64{}
		for _, l := range crash.Labels() {
			r.Steps[l.String()] = 0
		}
	}
	begin := time.Now()
	told := func() {
		if o.Progress != nil {
			o.Progress(time.Since(begin), r)
		}
	}
	if os.Geteuid() != 0 {
		r.skip("hostile peers: only root can start processes of other users")
	}
	for _, text := range without(torture.Roles(), lacking) {
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
	r.judgeNotices()
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
