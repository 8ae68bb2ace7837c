package bench

import (
	"math/bits"
	"time"
)

// Tail is how long single messages took: of all rounds, also those in which the processors moved
// or were shared, since that is what a tail is made of. Times are nanoseconds, one way: half of a
// round trip.
type Tail struct {
	Ours  Latencies  `json:"ours"`
	Rival *Latencies `json:"rival"`
}

// Latencies are those of one side.
type Latencies struct {
	Messages uint64  `json:"messages"` // each way
	P50      float64 `json:"p50_ns"`
	P90      float64 `json:"p90_ns"`
	P99      float64 `json:"p99_ns"`
	P999     float64 `json:"p99_9_ns"`
	P9999    float64 `json:"p99_99_ns"`
	Max      float64 `json:"max_ns"`
	// Preempted is how often the kernel took the processor away from either process, Collections how
	// often the Go runtime collected garbage, and LongestPause how long at most it stopped a process
	// for that.
	Preempted    uint64  `json:"preempted"`
	Collections  uint64  `json:"collections"`
	LongestPause float64 `json:"longest_pause_ns"`
	// Above is the part of all messages that took longer than Ns, for each time that came up.
	Above []Exceeded `json:"above"`
}

// Exceeded is a point of a distribution.
type Exceeded struct {
	Ns   float64 `json:"ns"`
	Part float64 `json:"part"`
}

// What a round leaves in its area: words of either role, then counts of round trips by their time.
// testdata/rivals/bench.h repeats it; a test compares.
const (
	tail0        = 4096
	tailPreempt  = 0 // words, one a role
	tailCollect  = 2
	tailPause    = 4
	tailLongest  = 6 // of role 0
	tailCounts   = 8
	tailWords    = 4096
	tailBuckets  = tailWords - tailCounts
	tailSubBits  = 6 // 64 counts for each doubling of the time: 1.6% apart
	tailPairs    = 11
	tailRound    = 500 * time.Millisecond
	liveHeap     = 16 << 20
	garbagePerNs = 0.2 // bytes: 200 MB a second
)

// bucketOf returns the number of the count for a time: times below 128 ns have one each, then 64
// share each doubling.
func bucketOf(ns uint64) int {
	e := max(0, bits.Len64(ns)-tailSubBits-1)
	return min(e<<tailSubBits+int(ns>>e), tailBuckets-1)
}

// bucketEnd returns the first time that is beyond a bucket.
func bucketEnd(i int) float64 {
	e := max(0, i>>tailSubBits-1)
	return float64(uint64(i-e<<tailSubBits+1) << e)
}

// times are what all rounds of a side left so far.
type times struct {
	said   Latencies
	counts [tailBuckets]uint64
}

// add takes what a round left.
func (t *times) add(words []uint64) {
	for role := range 2 {
		t.said.Preempted += words[tailPreempt+role]
		t.said.Collections += words[tailCollect+role]
		t.said.LongestPause = max(t.said.LongestPause, float64(words[tailPause+role]))
	}
	t.said.Max = max(t.said.Max, float64(words[tailLongest])/2)
	for i := range t.counts {
		t.counts[i] += words[tailCounts+i]
	}
}

// latencies says what the counts of all rounds amount to.
func (t *times) latencies() Latencies {
	l := t.said
	for _, n := range t.counts {
		l.Messages += n
	}
	quantiles := []struct {
		part float64
		at   *float64
	}{{0.5, &l.P50}, {0.9, &l.P90}, {0.99, &l.P99}, {0.999, &l.P999}, {0.9999, &l.P9999}}
	var seen uint64
	for i, n := range t.counts {
		if n == 0 {
			continue
		}
		seen += n
		below, ns := float64(seen)/float64(l.Messages), min(bucketEnd(i)/2, l.Max)
		for len(quantiles) > 0 && below >= quantiles[0].part {
			*quantiles[0].at = ns
			quantiles = quantiles[1:]
		}
		l.Above = append(l.Above, Exceeded{ns, 1 - below})
	}
	return l
}
