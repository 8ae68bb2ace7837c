package endpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/doorbell"
)

const (
	// What no descriptor tells is waited for in steps that double: room in a lane, a posted
	// buffer, the completion of a send.
	firstPauseNs = 50e3
	lastPauseNs  = 10e6
)

// runner is one call of Run.
type runner struct {
	*Endpoint
	stop    atomic.Bool
	eventFD int
	pauseNs int64
	other   Work // or nil
	fds     [3]unix.PollFd
}

// Run drives the endpoint until the context ends or the endpoint fails: it works while there is
// work, looks for Spin, and sleeps then. It holds an operating system thread while it sleeps, and
// wakes ten times a second when nothing happens. Others may use the endpoint meanwhile if it is
// Shared.
//
// It returns the context's error, wrapped, after which it can be called again; or an error of
// Progress. After Close it returns os.ErrClosed.
func (e *Endpoint) Run(ctx context.Context) error { return e.RunWith(ctx, nil) }

// RunWith is Run for a goroutine that has other work too. An error of that work ends it.
func (e *Endpoint) RunWith(ctx context.Context, w Work) error {
	if !e.drive.TryLock() {
		return fault("run", ErrDriven, "")
	}
	defer e.drive.Unlock()
	if e.closed.Load() {
		return fault("run", os.ErrClosed, "")
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fault("run", err, "")
	}
	r := &runner{Endpoint: e, eventFD: fd, pauseNs: firstPauseNs, other: w}
	e.waker.set(fd)
	defer func() {
		e.waker.set(-1)
		_ = unix.Close(fd)
	}()
	detach := context.AfterFunc(ctx, func() {
		r.stop.Store(true)
		e.Wake()
	})
	defer detach()
	err = r.loop()
	switch {
	case err == nil && e.closed.Load():
		err = os.ErrClosed
	case err == nil:
		err = ctx.Err()
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, err) {
			err = fmt.Errorf("%w: %w", err, cause)
		}
	}
	e.lock()
	e.publish(doorbell.Now())
	e.unlock()
	return fault("run", err, "")
}

// loop returns nil when it is told to stop.
func (r *runner) loop() error {
	spinUntil := int64(0) // 0: spinning is over until there was work again
	for !r.stop.Load() && !r.closed.Load() {
		now := doorbell.Now()
		more := 0
		if r.other != nil {
			var err error
			if more, err = r.other.Round(now); err != nil {
				return err
			}
		}
		work, timeoutNs, err := r.step(now)
		switch {
		case err != nil:
			return err
		case work+more > 0:
			spinUntil = now + int64(r.cfg.Spin)
			r.pauseNs = firstPauseNs
		case now < spinUntil:
			doorbell.Pause(8)
		default:
			spinUntil = 0
			if err := r.idle(timeoutNs); err != nil {
				return err
			}
		}
	}
	return nil
}

// step is what happens under the lock: a round, and how long to sleep if there was nothing to do.
func (r *runner) step(now int64) (work int, timeoutNs int64, err error) {
	r.lock()
	defer r.unlock()
	if err := r.usable(); err != nil {
		if r.closed.Load() {
			err = nil
		}
		return 0, 0, err
	}
	if work, err = r.turn(now); err != nil || work > 0 {
		return work, 0, err
	}
	timeoutNs = max(0, r.checkAt-now)
	r.fds[1].Fd = int32(r.socket.FD())
	if r.rxBlocked {
		r.fds[1].Fd = -1 // it is readable, and that is no news
	}
	if r.rxBlocked || r.sending > 0 {
		timeoutNs = min(timeoutNs, r.pauseNs)
	}
	return 0, timeoutNs, nil
}

// idle sleeps, unless the other work has something to do.
func (r *runner) idle(timeoutNs int64) error {
	r.fds[2].Fd = -1
	if r.other != nil {
		fd, ready, err := r.other.Idle()
		if ready || err != nil {
			return err
		}
		if r.fds[2] = (unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}); fd < 0 {
			timeoutNs = min(timeoutNs, r.pauseNs)
		}
	}
	if timeoutNs <= r.pauseNs {
		r.pauseNs = min(2*r.pauseNs, lastPauseNs)
	}
	r.lock()
	r.stats.Polls++
	r.unlock()
	return r.sleep(timeoutNs)
}

// sleep waits for a packet, for Wake, or for as long as what it waits for has no descriptor.
func (r *runner) sleep(timeoutNs int64) error {
	r.fds[0] = unix.PollFd{Fd: int32(r.eventFD), Events: unix.POLLIN}
	// In copy mode this runs the kernel's send path too, which has nothing left to do.
	r.fds[1].Events = unix.POLLIN
	ts := unix.NsecToTimespec(timeoutNs)
	_, err := unix.Ppoll(r.fds[:], &ts, nil)
	if err != nil && err != unix.EINTR && err != unix.EAGAIN {
		return err
	}
	if r.fds[0].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(r.eventFD, b[:])
	}
	return nil
}
