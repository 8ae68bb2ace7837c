package bench

import (
	"context"
)

// reportWire fills what only rows about packets have.
func (b *bencher) reportWire(ctx context.Context, c benchCase, r *Row, pairs []pair, count uint64,
	ours, rival *side,
) error {
	if !c.wire {
		return nil
	}
	perPacket := func(f func(pair) float64) *float64 {
		return ptr(quantile(column(pairs, f), 0.5) / float64(c.packets))
	}
	p := &Packets{OursCPU: perPacket(func(p pair) float64 { return p.ours.cpu }),
		OursAllocs: perPacket(func(p pair) float64 { return p.ours.allocs })}
	if rival != nil {
		p.RivalCPU = perPacket(func(p pair) float64 { return p.rival.cpu })
	}
	r.Packets = p
	counter, err := countSyscalls(ours, rival)
	if err != nil {
		p.CountingError = err.Error()
		return nil
	}
	defer counter.close()
	if p.OursPerCall, err = b.perCall(ctx, c, counter, ours, count); err == nil && rival != nil {
		p.RivalPerCall, err = b.perCall(ctx, c, counter, rival, count)
	}
	return err
}

// perCall returns packets per system call. What a process calls for each round, rather than for
// each packet, is the same in a long round and a short one.
func (b *bencher) perCall(ctx context.Context, c benchCase, counter *syscallCounter, s *side,
	count uint64,
) (*float64, error) {
	var calls [2]uint64
	for i, n := range [2]uint64{count, 3 * count} {
		before, err := counter.of(s, c.solo)
		if err != nil {
			return nil, err
		}
		if _, _, err := b.round(ctx, c, s, n); err != nil {
			return nil, err
		}
		after, err := counter.of(s, c.solo)
		if err != nil {
			return nil, err
		}
		calls[i] = after - before
	}
	if calls[1] <= calls[0] {
		return nil, nil
	}
	return ptr(float64(2*count) * float64(c.packets) / float64(calls[1]-calls[0])), nil
}
