// Package retry has somebody try again later who could not do something for want of what others
// have: descriptors, memory, room in a queue.
package retry

import (
	"cmp"
	"sync"
	"time"
)

// First and Most are the pauses of a [Later] that does not say others.
const (
	First = 50 * time.Millisecond
	Most  = time.Second
)

// Later tries again what could not be done. It costs nothing while nothing is wanted, and is in no
// goroutine between two tries. Its methods may be called from anywhere.
type Later struct {
	// Try does what is wanted. It calls Want if something still is, or has others do so soon. It
	// runs in a goroutine of its own, never twice at once. pause is how long it was waited for.
	Try func(pause time.Duration)
	// First is the pause before the first try. Each one after that is twice as long as the one
	// before, and at most Most. If nobody wants anything for the length of a pause after a try, the
	// next pause is First again. 0 stands for the constants of these names.
	First, Most time.Duration

	mu     sync.Mutex
	pause  time.Duration // of the try that is due, or was the last one
	calm   time.Time     // from then on a want begins anew
	wanted bool          // nobody has tried since
	timer  *time.Timer
	due    bool // a try comes, or runs
	closed bool
	trying sync.WaitGroup
}

// Want has Try called after a pause, unless that is to come already.
func (l *Later) Want() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wanted = true
	l.arrange()
}

// arrange has the next try come. The lock is held.
func (l *Later) arrange() {
	if !l.wanted || l.due || l.closed {
		return
	}
	first := cmp.Or(l.First, First)
	if l.pause = min(2*l.pause, cmp.Or(l.Most, Most)); l.pause < first || time.Now().After(l.calm) {
		l.pause = first
	}
	l.due = true
	l.trying.Add(1)
	l.timer = time.AfterFunc(l.pause, l.try)
}

func (l *Later) try() {
	defer l.trying.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.wanted = false // what is wanted from here on has another try
	pause := l.pause
	l.mu.Unlock()
	l.Try(pause)
	l.mu.Lock()
	l.due, l.calm = false, time.Now().Add(l.pause)
	l.arrange()
}

// Close ends it: when it returns no try runs, and none will. It reports whether something is still
// wanted. It must not be called from Try, or with a lock that Try takes. It may be called again.
func (l *Later) Close() (wanted bool) {
	l.mu.Lock()
	l.closed = true
	if l.timer != nil && l.timer.Stop() {
		l.trying.Done()
	}
	l.mu.Unlock()
	l.trying.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wanted
}
