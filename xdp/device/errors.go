package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/oserror"
	"github.com/shmring/shmring/internal/text"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// What can go wrong between an application and a device process. errors.Is finds the OS error
// number in brackets too.
var (
	// ErrServerGone: the device process is gone, or does not answer yet (ENOTCONN). The endpoint
	// looks for the next one by itself; what is called meanwhile fails with this.
	ErrServerGone = oserror.New("device process is gone", syscall.ENOTCONN)
	// ErrRefused: the allow-list of the device process has no place for this application (EACCES).
	ErrRefused = oserror.New("refused by the device process", syscall.EACCES)
	// ErrBudget: more frames, sends, ports or applications than the allow-list grants (EDQUOT).
	ErrBudget = oserror.New("over the budget of this user", syscall.EDQUOT)
	// ErrBusy: this user begins more connections at once than the device process talks to (EAGAIN).
	// Dial tries again as long as its context lasts.
	ErrBusy = oserror.New("too many connections begun", syscall.EAGAIN)
	// ErrPortTaken: another application, or this one, has the port already (EADDRINUSE).
	ErrPortTaken = oserror.New("port is taken", syscall.EADDRINUSE)
	// ErrProtocol: the other side said what it must not (EPROTO).
	ErrProtocol = oserror.New("impossible message", syscall.EPROTO)
	// ErrNoSlot: as many sends are under way as were granted (EAGAIN). Try again after a
	// completion.
	ErrNoSlot = oserror.New("no send slot free", syscall.EAGAIN)
	// ErrServing: another device process serves this socket path (EADDRINUSE).
	ErrServing = oserror.New("another device process serves this path", syscall.EADDRINUSE)
	// ErrSlow: it took longer than five seconds from connecting to start (ETIMEDOUT); one of the two
	// may have been stopped. Dial tries again as long as its context lasts.
	ErrSlow = oserror.New("took too long to start", syscall.ETIMEDOUT)
	// ErrClosing: the device process, or its device, is being closed (ESHUTDOWN). An endpoint looks
	// for the next one; Dial does not, since there may be none.
	ErrClosing = oserror.New("device process closes", syscall.ESHUTDOWN)
	// ErrNoFiles: the device process has as many descriptors open as it may (EMFILE).
	ErrNoFiles = oserror.New("device process is out of file descriptors", syscall.EMFILE)
	// ErrNoMemory: what the application needs does not fit the shared memory that is left (ENOSPC).
	ErrNoMemory = oserror.New("device process is out of shared memory", syscall.ENOSPC)
	// ErrOptions: a configuration or request that makes no sense (EINVAL).
	ErrOptions = xdp.ErrOptions
)

const pkg = "device"

func failed(op, name string, err error, hint string) error {
	return &shm.Error{Pkg: pkg, Op: op, Name: name, Err: err, Hint: hint}
}

// refusedError is the no of a device process. It matches its number, and the sentinels of this
// package that have it.
type refusedError struct {
	errno syscall.Errno
	text  string // in its own words
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("device: the device process says: %s (%v)", text.Printable(e.text), e.errno)
}

func (e *refusedError) Unwrap() error { return e.errno }

func (e *refusedError) Is(target error) bool {
	return slices.ContainsFunc(refusals, func(r reason) bool {
		return target == r.err && r.num == e.errno
	})
}

// reason is an error that passes over the socket as a number.
type reason struct {
	err error
	num syscall.Errno
}

// sameAs are what the server comes upon that means the same as one of the refusals.
var sameAs = []reason{{syscall.ENFILE, syscall.EMFILE}, {shm.ErrNoSpace, syscall.ENOSPC},
	{syscall.ENOMEM, syscall.ENOSPC}, {os.ErrClosed, syscall.ESHUTDOWN},
	{cq.ErrTimedOut, syscall.ETIMEDOUT}, {context.DeadlineExceeded, syscall.ETIMEDOUT},
	{os.ErrDeadlineExceeded, syscall.ETIMEDOUT},
	{context.Canceled, syscall.ESHUTDOWN}}

// refusals are the reasons that have sentinels. Numbers that an older application does not know it
// shows as they are, with the text.
var refusals = []reason{
	{ErrRefused, syscall.EACCES}, {ErrBudget, syscall.EDQUOT},
	{ErrBusy, syscall.EAGAIN}, {ErrPortTaken, syscall.EADDRINUSE}, {ErrProtocol, syscall.EPROTO},
	{ErrOptions, syscall.EINVAL}, {shm.ErrVersion, syscall.EPROTONOSUPPORT},
	{ErrSlow, syscall.ETIMEDOUT}, {ErrClosing, syscall.ESHUTDOWN}, {ErrNoFiles, syscall.EMFILE},
	{ErrNoMemory, syscall.ENOSPC},
}

// hintOf is what can be done about an error of connecting.
func hintOf(err error) string {
	no := (*refusedError)(nil)
	refused := errors.As(err, &no)
	for _, h := range []struct {
		err  error
		no   bool // only if the device process said so
		hint string
	}{
		{ErrNoFiles, false, "raise the limit of open files of the device process: " +
			"\"ulimit -n\", or LimitNOFILE of its service"},
		{syscall.EMFILE, false, "raise the limit of open files: \"ulimit -n\", LimitNOFILE"},
		{syscall.ENFILE, false, "raise fs.file-max of the machine"},
		{ErrNoMemory, true, "ask for fewer frames and sends or a smaller queue, or give the " +
			"device process more memory"},
		{ErrClosing, true, "dial again when the next device process is there"},
		{ErrSlow, false, "one of the two was stopped, or has no time: dial again"},
		{shm.ErrVersion, true, "device process and application are to be of one version"},
		{ErrRefused, true, "see the --allow of \"shmctl serve\""},
		{ErrBudget, true, "see the --allow of \"shmctl serve\", or ask for less"},
		{ErrPortTaken, true, "see \"shmctl serve\" for who has it"},
	} {
		if errors.Is(err, h.err) && (refused || !h.no) {
			return h.hint
		}
	}
	switch {
	case refused:
		return ""
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return "no device process serves this path: start \"shmctl serve\""
	case errors.Is(err, syscall.EACCES):
		return "the directory of the socket must be open to this user"
	}
	return ""
}

// omittedError stands for errors that are told too often: how many were left out since the last one
// of their cause, and the last of them.
type omittedError struct {
	count int
	error
}

func (e *omittedError) Error() string {
	return fmt.Sprintf("%d more reports of this cause were left out, the last one: %v", e.count,
		e.error)
}

func (e *omittedError) Unwrap() error { return e.error }

// errClosing is why a server that closes refuses, or ends to serve.
var errClosing = fmt.Errorf("%w: %w", ErrClosing, os.ErrClosed)

func errnoOf(err error, def syscall.Errno) cq.Errno {
	var num syscall.Errno
	if errors.As(err, &num) && num > 0 && num < 256 {
		return cq.Errno(num)
	}
	return cq.Errno(def)
}

// reports bounds how often Config.Report is told of one cause. Whoever may connect can be refused,
// or break off, as often as he likes, and a log that is filled so is written to by the goroutines
// that serve.
type reports struct {
	tell func(error) // nil if nobody wants to know

	mu     sync.Mutex // guards what follows; not held while tell runs
	causes map[error]*cause
	told   int       // of all causes since
	since  time.Time // this, which is not longer ago than lastWindow
}

// cause is what was told and not told of one cause in a window of time, the first of which begins
// with its first error. Each is twice as long as the one before, whatever was left out in that: who
// keeps below what a window allows would fill a log as well. Only a quiet time as long as the last
// window begins anew.
type cause struct {
	told, left int
	last       error
	until      time.Time // the end of the window
	window     time.Duration
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

// add tells of an error, and how many of its cause were left out before it, or counts it.
func (r *reports) add(err error) {
	if r.tell == nil {
		return
	}
	key, now := causeOf(err), time.Now()
	r.mu.Lock()
	c := r.causes[key]
	if c == nil {
		if r.causes == nil {
			r.causes = map[error]*cause{}
		}
		c = &cause{}
		r.causes[key] = c
	}
	switch late := now.Sub(c.until); {
	case late >= lastWindow:
		c.told, c.window, c.until = 0, firstWindow, now.Add(firstWindow)
	case late >= 0:
		c.told, c.window = reportsAtFirst-reportsLater, min(2*c.window, lastWindow)
		c.until = now.Add(c.window)
	}
	if c.told == reportsAtFirst || !r.mayTell(now) {
		c.left, c.last = c.left+1, err
		r.mu.Unlock()
		return
	}
	c.told++
	omitted := c.take()
	r.mu.Unlock()
	if omitted != nil {
		r.tell(omitted)
	}
	r.tell(err)
}

// mayTell counts one report of those that all causes have together. The lock is held.
func (r *reports) mayTell(now time.Time) bool {
	if now.Sub(r.since) >= lastWindow {
		r.since, r.told = now, 0
	}
	if r.told == reportsOfAll {
		return false
	}
	r.told++
	return true
}

// take returns what is to be said of what was left out.
func (c *cause) take() error {
	if c.left == 0 {
		return nil
	}
	err := &omittedError{c.left, c.last}
	c.left, c.last = 0, nil
	return err
}

// close tells what was left out.
func (r *reports) close() {
	r.mu.Lock()
	var rest []error
	for _, c := range r.causes {
		if err := c.take(); err != nil {
			rest = append(rest, err)
		}
	}
	r.mu.Unlock()
	for _, err := range rest {
		r.tell(err)
	}
}
