package bench

import (
	"math"
	"slices"
)

// movedFactor is how far the probes of a pair may lie apart. The placements that were seen differ
// by a factor of two and more, the probes within one by a few per cent.
const movedFactor = 1.4

// wholeShare is how much of a round processes that spin must have run for the round to count: less
// means that something else was on a processor. The Go runtime's own threads take under one per
// cent of a settled process and do not count as something else.
const wholeShare = 0.97

// outcome is one round of one side.
type outcome struct {
	value         float64
	before, after float64 // line transfer, ns
	share         float64 // of the round, during which the processes ran; the lesser of the two
	cpu           float64 // ns of both processes, for each message
	allocs        float64 // of both processes, for each message
}

// pair is a round of ours and a round of the rival, next to each other in time.
type pair struct{ ours, rival outcome }

// disturbed reports whether the processors changed their place during the pair or were shared.
func (p pair) disturbed() bool {
	probes := []float64{p.ours.before, p.ours.after, p.rival.before, p.rival.after}
	return slices.Max(probes) > movedFactor*slices.Min(probes) ||
		min(p.ours.share, p.rival.share) < wholeShare
}

// relativeShares relates the shares of both sides to the largest that each of them had. What the
// kernel does for packets it may not count as time of the process, depending on how it is built.
func relativeShares(pairs []pair) {
	var ours, rival float64
	for _, p := range pairs {
		ours, rival = max(ours, p.ours.share), max(rival, p.rival.share)
	}
	for i := range pairs {
		if ours > 0 && rival > 0 {
			pairs[i].ours.share /= ours
			pairs[i].rival.share /= rival
		}
	}
}

// undisturbed drops the pairs that do not count.
func undisturbed(pairs []pair) (kept []pair, dropped int) {
	for _, p := range pairs {
		if p.disturbed() {
			dropped++
		} else {
			kept = append(kept, p)
		}
	}
	return kept, dropped
}

// column returns f of every pair in ascending order.
func column(pairs []pair, f func(pair) float64) []float64 {
	xs := make([]float64, len(pairs))
	for i, p := range pairs {
		xs[i] = f(p)
	}
	slices.Sort(xs)
	return xs
}

// quantile returns the q-quantile of sorted values, which must not be empty, interpolated.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// medianRanks returns the 0-based ranks of the order statistics of n values that enclose the median
// of what they were drawn from with at least 95% probability, whatever the distribution: below the
// median lie Binomial(n, 1/2) of them. ok is false when n is too small for that.
func medianRanks(n int) (low, high int, ok bool) {
	below := 0.0 // P(X <= low-1), each tail may hold 2.5%
	for low = 0; low < n; low++ {
		below += binomialHalf(n, low)
		if below > 0.025 {
			break
		}
	}
	// low is now the first rank whose inclusion exceeds the tail; the one before is the bound.
	low--
	return low, n - 1 - low, low >= 0
}

// binomialHalf returns P(X = k) for X ~ Binomial(n, 1/2).
func binomialHalf(n, k int) float64 {
	a, _ := math.Lgamma(float64(n + 1))
	b, _ := math.Lgamma(float64(k + 1))
	c, _ := math.Lgamma(float64(n - k + 1))
	return math.Exp(a - b - c - float64(n)*math.Ln2)
}

// report fills the figures of a row in which both sides were measured.
func (r *Row) report(pairs []pair) {
	kept, dropped := undisturbed(pairs)
	r.Dropped = dropped
	if len(kept) == 0 {
		r.Note = "every pair of rounds was disturbed: the processors moved or were shared; measure again"
		return
	}
	r.reportOurs(kept)
	ratios := column(kept, func(p pair) float64 { return p.ours.value / p.rival.value })
	mid := quantile(ratios, 0.5)
	r.Rival = ptr(quantile(column(kept, func(p pair) float64 { return p.rival.value }), 0.5))
	r.Ratio = ptr(mid)
	r.Spread = ptr((quantile(ratios, 0.75) - quantile(ratios, 0.25)) / mid)
	if low, high, ok := medianRanks(len(ratios)); ok {
		r.RatioLow, r.RatioHigh = ptr(ratios[low]), ptr(ratios[high])
	} else {
		r.Note = "too few pairs of rounds for an interval"
	}
}

// reportOurs fills those of our side, which may be alone.
func (r *Row) reportOurs(kept []pair) {
	r.Rounds = len(kept)
	r.Ours = ptr(quantile(column(kept, func(p pair) float64 { return p.ours.value }), 0.5))
	r.PlacementNs = ptr(quantile(column(kept, func(p pair) float64 { return p.ours.before }), 0.5))
}

func ptr(x float64) *float64 { return &x }
