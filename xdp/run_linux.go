package xdp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/doorbell"
)

const (
	// checkEveryNs is how often a silent device is asked whether it is still there, and how long a
	// sleep is at most: no poll ever tells that an interface is gone.
	checkEveryNs = 100e6
	// What no descriptor tells is waited for in steps that double: room in a lane, a frame to
	// send from, the completion of a send.
	firstPauseNs = 50e3
	lastPauseNs  = 10e6
)

// runner is one call of Run.
type runner struct {
	*Port
	stop    atomic.Bool
	stopFD  int
	checkAt int64
	pauseNs int64
	fds     [3]unix.PollFd
}

// Run drives the port until the context ends or the port fails: it works while there is work,
// looks for Spin, and sleeps then. It holds an operating system thread while it sleeps, and wakes
// ten times a second when nothing happens.
//
// It returns the context's error, wrapped, after which it can be called again; or an error of
// Progress. After [ErrDeviceGone] the socket is closed and every send that was accepted has been
// answered, with ECANCELED if it was under way. After Close it returns os.ErrClosed.
func (p *Port) Run(ctx context.Context) error {
	const op = "run port"
	if !p.drive.TryLock() {
		return &Error{Pkg: pkg, Op: op, Err: errDriven}
	}
	defer p.drive.Unlock()
	if p.ended {
		return &Error{Pkg: pkg, Op: op, Err: os.ErrClosed}
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return &Error{Pkg: pkg, Op: op, Err: err}
	}
	r := &runner{Port: p, stopFD: fd, pauseNs: firstPauseNs}
	p.waker.set(fd)
	defer func() {
		p.waker.set(-1)
		_ = unix.Close(fd)
	}()
	detach := context.AfterFunc(ctx, func() {
		r.stop.Store(true)
		p.waker.wake()
	})
	defer detach()
	err = r.loop()
	switch {
	case errors.Is(err, ErrDeviceGone):
		if e := p.end(); e != nil {
			err = errors.Join(err, e)
		}
	case err == nil && p.closed.Load():
		err = os.ErrClosed
	case err == nil:
		err = ctx.Err()
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, err) {
			err = fmt.Errorf("%w: %w", err, cause)
		}
	}
	p.publish(doorbell.Now())
	return &Error{Pkg: pkg, Op: op, Err: err}
}

// loop returns nil when it is told to stop.
func (r *runner) loop() error {
	spinUntil := int64(0) // 0: spinning is over until there was work again
	for !r.stop.Load() && !r.closed.Load() {
		now := doorbell.Now()
		if now >= r.checkAt {
			r.checkAt = now + checkEveryNs
			if err := r.linkState(r.dev.Check()); err != nil {
				return err
			}
		}
		work, err := r.round(now)
		switch {
		case err != nil:
			return err
		case work > 0:
			spinUntil = now + int64(r.spin)
			r.pauseNs = firstPauseNs
		case now < spinUntil:
			doorbell.Pause(8)
		default:
			spinUntil = 0
			if err := r.sleep(now); err != nil {
				return err
			}
		}
	}
	return nil
}

// sleep waits for a descriptor, or for as long as what it waits for has none.
func (r *runner) sleep(now int64) error {
	timeout := max(0, r.checkAt-now)
	if r.rxBlocked || r.txBlocked || r.core.Sending() > 0 {
		timeout = min(timeout, r.pauseNs)
		r.pauseNs = min(2*r.pauseNs, lastPauseNs)
	}
	fds := append(r.fds[:0], unix.PollFd{Fd: int32(r.stopFD), Events: unix.POLLIN})
	if !r.rxBlocked {
		// In copy mode this runs the kernel's send path too, which has nothing left to do.
		fds = append(fds, unix.PollFd{Fd: int32(r.dev.FD()), Events: unix.POLLIN})
	}
	if !r.txBlocked {
		ready, err := r.arm()
		if ready || err != nil {
			return err
		}
		fds = append(fds, unix.PollFd{Fd: int32(r.q.FD()), Events: unix.POLLIN})
	}
	r.stats.Polls++
	ts := unix.NsecToTimespec(timeout)
	if _, err := unix.Ppoll(fds, &ts, nil); err != nil && err != unix.EINTR && err != unix.EAGAIN {
		return err
	}
	return nil
}

// arm makes the command queue's descriptor tell of commands that come from now on.
func (r *runner) arm() (ready bool, err error) {
	err = r.q.TryWait()
	var lane *cq.LaneError
	switch {
	case err == nil:
		return false, nil
	case err == cq.ErrAgain, err == cq.ErrSignaled:
		return true, nil
	case errors.As(err, &lane):
		r.stats.LanesLost++
		return true, nil
	}
	return false, err
}

// sealShrink makes sure that a memfd keeps its size.
func sealShrink(fd int) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK != 0 {
		return err
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	return err
}
