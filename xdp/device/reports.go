package device

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// reports bounds how often Config.Report is told of one cause. Whoever may connect can be refused,
// or break off, as often as he likes, and a log that is filled so is written to by the goroutines
// that serve.
type reports struct {
	tell func(error) // nil if nobody wants to know

	mu     sync.Mutex // guards what follows; not held while tell runs
	causes map[error]*cause
	closed bool
	told   int       // of all causes since
	since  time.Time // this, which is not longer ago than lastWindow
	timers sync.WaitGroup
}

// cause is what was told and not told of one cause in a window of time. A window in which there was
// anything is followed by one twice as long, whatever was left out: who keeps below what a window
// allows would fill a log as well. Only a quiet time as long as the last window begins anew.
type cause struct {
	told, left int
	last       error
	window     time.Duration
	quiet      time.Duration // since the last window in which there was anything
	timer      *time.Timer   // ends the window
}

const (
	reportsAtFirst = 8 // in the first window
	reportsLater   = 1
	reportsOfAll   = 64 // causes, in a time as long as the last window
	firstWindow    = time.Second
	lastWindow     = time.Minute
)

// causesOf are what is told apart, the first that matches; all else is one cause.
var causesOf = []error{ErrRefused, ErrBusy, ErrBudget, ErrPortTaken, ErrSlow, ErrProtocol,
	ErrOptions, shm.ErrVersion, shm.ErrNoSpace, shm.ErrCorrupt, shm.ErrKind, shm.ErrOwner,
	cq.ErrCorrupt, cq.ErrLanes, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM,
	context.DeadlineExceeded,
	context.Canceled}

func causeOf(err error) error {
	for _, c := range causesOf {
		if errors.Is(err, c) {
			return c
		}
	}
	return nil
}

// add tells of an error, or counts it.
func (r *reports) add(err error) {
	if r.tell == nil {
		return
	}
	key := causeOf(err)
	r.mu.Lock()
	c := r.causes[key]
	if c == nil {
		if r.causes == nil {
			r.causes = map[error]*cause{}
		}
		c = &cause{window: firstWindow}
		r.causes[key] = c
	}
	most := reportsAtFirst
	if c.window > firstWindow {
		most = reportsLater
	}
	if c.timer == nil && !r.closed {
		r.open(c)
	}
	c.told++
	if !r.closed && (c.told > most || !r.mayTell()) {
		c.left, c.last = c.left+1, err
		r.mu.Unlock()
		return
	}
	r.mu.Unlock()
	r.tell(err)
}

// mayTell counts one report of those that all causes have together. The lock is held.
func (r *reports) mayTell() bool {
	if now := time.Now(); now.Sub(r.since) >= lastWindow {
		r.since, r.told = now, 0
	}
	if r.told == reportsOfAll {
		return false
	}
	r.told++
	return true
}

// open begins a window. The lock is held.
func (r *reports) open(c *cause) {
	r.timers.Add(1)
	c.timer = time.AfterFunc(c.window, func() {
		defer r.timers.Done()
		r.over(c)
	})
}

// over ends a window, and begins the next one unless it has been quiet for long.
func (r *reports) over(c *cause) {
	r.mu.Lock()
	omitted := c.take()
	busy := c.told > 0
	c.told, c.timer = 0, nil
	if busy {
		c.quiet, c.window = 0, min(2*c.window, lastWindow)
	} else {
		c.quiet += c.window
	}
	switch {
	case r.closed:
	case c.quiet >= lastWindow:
		c.quiet, c.window = 0, firstWindow
	default:
		r.open(c)
	}
	r.mu.Unlock()
	if omitted != nil {
		r.tell(omitted)
	}
}

// take returns what is to be said of what was left out.
func (c *cause) take() error {
	if c.left == 0 {
		return nil
	}
	err := &OmittedError{Count: c.left, Err: c.last}
	c.left, c.last = 0, nil
	return err
}

// close ends all windows. Errors that come later are told as they come.
func (r *reports) close() {
	r.mu.Lock()
	r.closed = true
	var rest []error
	for _, c := range r.causes {
		if c.timer != nil && c.timer.Stop() {
			r.timers.Done()
		}
		if err := c.take(); err != nil {
			rest = append(rest, err)
		}
	}
	r.mu.Unlock()
	r.timers.Wait()
	for _, err := range rest {
		r.tell(err)
	}
}
