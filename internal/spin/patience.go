package spin

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// restMin and restMax are how many waits begin without a look once looks have found nothing.
	restMin, restMax = 16, 256
	// trial is how many looks in a row are tried after that, and trust what a run of looks that
	// find something adds up to at most.
	trial, trust = 4, 16
)

// Looking is how many goroutines of this process look instead of sleeping. More of them than
// processors keep each other, and those that they wait for, from running.
var Looking atomic.Int32

// MaxLooking is how many may.
func MaxLooking() int32 { return int32(min(runtime.NumCPU(), runtime.GOMAXPROCS(0))) }

// Patience is what the readers of a connection have learned from looks. As long as most of them
// find something, each wait begins with one. After that many waits go by without, and then some
// looks in a row are tried: two ends that look find each other so, and one whose peer sleeps
// between any two messages is the slower for it in few waits only.
type Patience struct{ score, rest, left int }

// Grant reports whether a wait is to begin with a look.
func (p *Patience) Grant() bool {
	if p.left > 0 {
		p.left--
		return false
	}
	return true
}

// Learn takes what a look has found, and whether it was interrupted for long: then others want the
// processors.
func (p *Patience) Learn(found, interrupted bool) {
	switch {
	case interrupted:
		p.score = 0
	case found:
		if p.score = min(p.score+1, trust); p.score == trust {
			p.rest = 0
		}
	default:
		p.score -= 2
	}
	if p.score <= 0 {
		p.rest = min(max(restMin, 2*p.rest), restMax)
		p.left, p.score = p.rest, trial
	}
}

// Linger is Until, unless as many look already as may: then looked is false. What it returns is
// for Learn.
func Linger(budget time.Duration, ready func() bool) (found, interrupted, looked bool) {
	defer Looking.Add(-1)
	if Looking.Add(1) > MaxLooking() {
		return false, false, false
	}
	began := Now()
	found = Until(budget, ready)
	return found, time.Duration(Now()-began) > 8*budget, true
}
