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
	timers sync.WaitGroup
}

// cause is what was told and not told of one cause in a window of time. The windows grow as long as
// something is left out in each.
type cause struct {
	told, left int
	last       error
	window     time.Duration
	timer      *time.Timer // ends the window
}

const (
	reportsAtFirst = 8 // in a window after a quiet one
	reportsLater   = 1
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
	if c.told++; c.told > most && !r.closed {
		c.left, c.last = c.left+1, err
		r.mu.Unlock()
		return
	}
	if c.timer == nil && !r.closed {
		r.open(c)
	}
	r.mu.Unlock()
	r.tell(err)
}

// open begins a window. The lock is held.
func (r *reports) open(c *cause) {
	r.timers.Add(1)
	c.timer = time.AfterFunc(c.window, func() {
		defer r.timers.Done()
		r.over(c)
	})
}

// over ends a window, and begins the next one if something was left out.
func (r *reports) over(c *cause) {
	r.mu.Lock()
	omitted := c.take()
	c.told, c.timer = 0, nil
	switch {
	case r.closed:
	case omitted == nil:
		c.window = firstWindow
	default:
		c.window = min(2*c.window, lastWindow)
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
