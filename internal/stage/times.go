package stage

import "math/bits"

// Times counts how often something took how long, in nanoseconds.
type Times struct {
	Counts [TimeCounts]uint64 // by [TimeCount]
	Most   uint64             // the longest of all
}

// Times below 128 ns have a count each, then 64 share each doubling, 1.6% apart.
const (
	TimeBits   = 6
	TimeCounts = 4088
)

// TimeCount is the number of the count for a time.
func TimeCount(ns uint64) int {
	e := max(0, bits.Len64(ns)-TimeBits-1)
	return min(e<<TimeBits+int(ns>>e), TimeCounts-1)
}

// timeEnd is the first time that is beyond those of a count.
func timeEnd(i int) float64 {
	e := max(0, i>>TimeBits-1)
	return float64(uint64(i-e<<TimeBits+1) << e)
}

// Add counts one.
func (t *Times) Add(ns uint64) {
	t.Counts[TimeCount(ns)]++
	t.Most = max(t.Most, ns)
}

// Each goes through those that there were, from the shortest on: a time that they took at most, and
// which part of all took no longer.
func (t *Times) Each(f func(ns, part float64)) (all uint64) {
	for _, n := range t.Counts {
		all += n
	}
	seen := uint64(0)
	for i, n := range t.Counts {
		if seen += n; n > 0 {
			f(min(timeEnd(i), float64(t.Most)), float64(seen)/float64(all))
		}
	}
	return all
}
