package udp

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/spin"
)

const (
	// lookFor is how long a reader looks before it sleeps: about as long as it takes to be woken.
	lookFor = 30 * time.Microsecond
	// restMin and restMax are how many waits begin without a look once looks have found nothing.
	restMin, restMax = 16, 256
	// trial is how many looks in a row are tried after that, and trust what a run of looks that
	// find something adds up to at most.
	trial, trust = 4, 16
)

// looking is how many goroutines of this process look at devices instead of sleeping. More of them
// than processors keep each other, and those that they wait for, from running.
var looking atomic.Int32

func maxLooking() int32 { return int32(min(runtime.NumCPU(), runtime.GOMAXPROCS(0))) }

// patience is what the readers of a connection have learned from looks. As long as most of them
// find something, each wait begins with one. After that many waits go by without, and then some
// looks in a row are tried: two ends that look find each other so, and one whose peer sleeps
// between any two datagrams is the slower for it in few waits only.
type patience struct{ score, rest, left int }

// grant reports whether a wait is to begin with a look.
func (p *patience) grant() bool {
	if p.left > 0 {
		p.left--
		return false
	}
	return true
}

// learn takes what a look has found, and whether it was interrupted for long: then others want the
// processors.
func (p *patience) learn(found, interrupted bool) {
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

// linger looks at the devices for a reader that would have to sleep, if that has been of use. It
// reports whether the connection has something now.
func (s *Stack) linger(c *Conn) bool {
	if s.budget <= 0 || !c.grant() {
		return false
	}
	defer looking.Add(-1)
	if looking.Add(1) > maxLooking() {
		return false
	}
	began := spin.Now()
	found := spin.Until(s.budget, func() bool { return s.look(c) })
	c.learn(found, time.Duration(spin.Now()-began) > 8*s.budget)
	return found
}

func (c *Conn) grant() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.patience.grant()
}

func (c *Conn) learn(found, interrupted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.patience.learn(found, interrupted)
}
