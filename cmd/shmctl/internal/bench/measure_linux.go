package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A side is a program whose two processes wait for commands.
type side struct {
	duo     *duo
	command string
}

// bencher holds what the rows of one run share.
type bencher struct {
	o      Options
	tools  *toolchain
	why    error // why there are no rivals
	shared *shared
	epoch  uint64   // grows by steps each round, so that no barrier can see an old round
	area   int      // of the next round
	start  uint64   // index at which the rings of the next round begin
	wire   [2]*wire // of ours and of the rival, made when a case is about packets
}

func measure(ctx context.Context, o Options, cases []benchCase) (rows []Row, err error) {
	if cases, err = matching(cases, o.Cases); err != nil {
		return nil, err
	}
	// The children die with the thread that started them, so it must not go away before them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if o.CPUs, err = processors(o.CPUs); err != nil {
		return nil, err
	}
	b := &bencher{o: o}
	if b.tools, b.why = newToolchain(o.Compiler); b.tools != nil {
		defer b.tools.close()
	} else if !errors.Is(b.why, ErrNoCompiler) {
		return nil, b.why
	}
	if b.shared, err = newShared(); err != nil {
		return nil, err
	}
	defer b.shared.close()
	defer b.closeWires()
	for i, c := range cases {
		if c.ours == "" && b.missing(ctx, c) != nil {
			continue
		}
		row, err := b.row(ctx, c, i, len(cases))
		if err != nil {
			return rows, fmt.Errorf("bench: %s, batch %d: %w", c.name, c.batch, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// row measures one case with four fresh processes.
func (b *bencher) row(ctx context.Context, c benchCase, i, n int) (Row, error) {
	r := Row{Case: c.name, Batch: c.batch, RivalName: c.rivalName, Unit: c.unit()}
	tell := func(k int) {
		if b.o.Progress != nil {
			b.o.Progress(Progress{i, n, c.name, c.batch, k, b.o.Pairs})
		}
	}
	tell(0)
	if err := b.prepareWires(c); err != nil {
		return r, err
	}
	ours, rival, err := b.sides(ctx, c)
	if err != nil {
		return r, err
	}
	defer ours.duo.close()
	if rival != nil {
		defer rival.duo.close()
	}
	count, err := b.calibrate(ctx, c, ours, rival)
	if err != nil {
		return r, err
	}
	var pairs []pair
	var alone []outcome
	for k := range b.o.Pairs {
		if k%16 == 0 {
			tell(k)
		}
		p, err := b.pair(ctx, c, ours, rival, count, k%2 == 1)
		if err != nil {
			return r, err
		}
		pairs, alone = append(pairs, p), append(alone, p.ours)
	}
	if c.wire {
		relativeShares(pairs)
	}
	tell(b.o.Pairs)
	if rival == nil {
		r.reportAlone(alone, b.missing(ctx, c).Error())
	} else {
		r.report(pairs)
	}
	return r, b.reportWire(ctx, c, &r, pairs, count, ours, rival)
}

// missing says why the case has no rival here, nil if it has one.
func (b *bencher) missing(ctx context.Context, c benchCase) error {
	if c.rivalOurs {
		return nil
	}
	if b.tools == nil {
		return b.why
	}
	if _, err := b.tools.build(ctx, c.source); errors.Is(err, ErrNoLibrary) {
		return err
	}
	return nil
}

func (b *bencher) sides(ctx context.Context, c benchCase) (ours, rival *side, err error) {
	var child, theirs []string // none: ours
	alone := b.missing(ctx, c) != nil
	if !c.rivalOurs && !alone {
		exe, err := b.tools.build(ctx, c.source)
		if err != nil {
			return nil, nil, err
		}
		theirs = []string{exe}
	}
	if c.ours == "" {
		child, c.ours = theirs, c.rival
	}
	ours = &side{command: c.ours}
	if ours.duo, err = startDuo(b.sharedWith(c, 0), b.o.CPUs, child, child); err != nil || alone {
		return ours, nil, err
	}
	rival = &side{command: c.rival}
	if rival.duo, err = startDuo(b.sharedWith(c, 1), b.o.CPUs, theirs, theirs); err != nil {
		ours.duo.close()
	}
	return ours, rival, err
}

// calibrate returns how many messages the slower side handles in a round, having warmed both up.
func (b *bencher) calibrate(ctx context.Context, c benchCase, sides ...*side) (uint64, error) {
	count, want := uint64(200), b.o.RoundTime/time.Duration(max(1, c.share))
	for {
		var slowest time.Duration
		for _, s := range sides {
			if s == nil {
				continue
			}
			ns, _, err := b.round(ctx, c, s, count)
			if err != nil {
				return 0, err
			}
			slowest = max(slowest, time.Duration(ns))
		}
		if slowest >= want/2 {
			return max(1, uint64(float64(count)*float64(want)/float64(slowest))), nil
		}
		count *= 2
	}
}

func (b *bencher) pair(ctx context.Context, c benchCase, ours, rival *side, count uint64,
	rivalFirst bool,
) (p pair, err error) {
	// Both rounds of a pair begin at the same index: where batches lie relative to a page shows.
	b.area = (b.area + 1) % areas
	b.start = 0
	if c.stagger {
		b.start = rand.Uint64N(1 << 40)
	}
	order := []*side{ours, rival}
	if rivalFirst {
		order = []*side{rival, ours}
	}
	for _, s := range order {
		if s == nil {
			continue
		}
		ns, o, err := b.round(ctx, c, s, count)
		if err != nil {
			return p, err
		}
		o.value = c.value(ns, count)
		if s == ours {
			p.ours = o
		} else {
			p.rival = o
		}
	}
	return p, nil
}

// round runs one round of a side and checks that every message arrived once and whole.
func (b *bencher) round(ctx context.Context, c benchCase, s *side, count uint64) (
	ns uint64, o outcome, err error,
) {
	b.epoch += steps
	line := fmt.Sprintf("%s %d %d %d %d %d %d", s.command, c.batch, c.pauses, count, b.start,
		b.epoch, b.area)
	answers, err := s.duo.run(ctx, line)
	if err != nil {
		return 0, o, err
	}
	o.share = 1
	for role, a := range answers {
		if !c.sleeps && (!c.solo || role == 0) {
			o.share = min(o.share, a.share)
		}
		if !c.solo || role == 0 {
			o.cpu += float64(a.cpuNs) / float64(count)
			o.allocs += float64(a.allocs) / float64(count)
		}
		ns = max(ns, a.ns)
		o.before, o.after = max(o.before, a.before), max(o.after, a.after)
		if want := checksum(b.start, count); a.checksum != 0 && a.checksum != want {
			return 0, o, fmt.Errorf("%s, process %d: checksum of %d messages is %d, not %d: "+
				"messages were lost, repeated or torn", s.command, role, count, a.checksum, want)
		}
	}
	if ns == 0 {
		return 0, o, fmt.Errorf("%s: no process measured the round", s.command)
	}
	return ns, o, nil
}

// processors returns the two processors to run on.
func processors(want [2]int) ([2]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return want, fmt.Errorf("bench: allowed processors: %w", err)
	}
	if want != [2]int{} {
		if want[0] == want[1] || !set.IsSet(want[0]) || !set.IsSet(want[1]) {
			return want, fmt.Errorf("bench: %d and %d are not two processors that this process "+
				"may use: %w", want[0], want[1], unix.EINVAL)
		}
		return want, nil
	}
	n := 0
	for cpu := 0; n < 2 && cpu < 1024; cpu++ {
		if set.IsSet(cpu) {
			want[n] = cpu
			n++
		}
	}
	if n < 2 {
		return want, fmt.Errorf("bench: two processes that spin need two processors, allowed is "+
			"one: %w", errors.ErrUnsupported)
	}
	return want, nil
}
