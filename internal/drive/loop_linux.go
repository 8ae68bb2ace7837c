package drive

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/spin"
)

const (
	// What no descriptor tells is waited for in steps that double: room in a lane, a posted
	// buffer, the completion of a send.
	firstPauseNs = 50e3
	lastPauseNs  = 10e6
)

// Sleep is how long a loop may sleep, and what ends that sooner.
type Sleep struct {
	fds       []unix.PollFd
	timeoutNs int64
	pauseNs   int64
	pauses    bool
	ready     bool
}

// On has the sleep end when a descriptor is readable.
func (s *Sleep) On(fd int) {
	s.fds = append(s.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
}

// AtMost bounds the sleep, in nanoseconds.
func (s *Sleep) AtMost(ns int64) { s.timeoutNs = min(s.timeoutNs, max(0, ns)) }

// Briefly has the sleep be short, since no descriptor tells of something that is waited for.
func (s *Sleep) Briefly() { s.pauses = true }

// Not says that there is something to do: another round follows at once.
func (s *Sleep) Not() { s.ready = true }

// Run drives d until the context ends or a round fails. It looks for as long as look before it
// sleeps, which is a poll on a thread of its own. The error is nil at the end of the context.
func (l *Loop) Run(ctx context.Context, look time.Duration, d Device) error {
	if err := l.Open(); err != nil {
		return err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, l.Wake)()
	l.sleep.pauseNs = firstPauseNs
	spinUntil := int64(0) // 0: spinning is over until there was work again
	for ended := ctx.Done(); ; {
		select {
		case <-ended:
			return nil
		default:
		}
		now := spin.Now()
		work, err := d.Round(now)
		switch {
		case err != nil:
			return err
		case work > 0:
			spinUntil = now + int64(look)
			l.sleep.pauseNs = firstPauseNs
		case now < spinUntil:
			spin.Pause(8)
		default:
			spinUntil = 0
			if err := l.rest(now, d); err != nil {
				return err
			}
		}
	}
}

// Open makes what ends a sleep, for a Run that must not fail for want of descriptors. Run calls it
// otherwise.
func (l *Loop) Open() (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.awake {
		return nil
	}
	if l.fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	l.awake = true
	return nil
}

// Close gives back what Open made, if no Run has: Run does.
func (l *Loop) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.awake {
		l.awake = false
		_ = unix.Close(l.fd)
	}
}

// rest sleeps until what d says.
func (l *Loop) rest(now int64, d Device) error {
	s := &l.sleep
	s.fds, s.timeoutNs, s.pauses, s.ready = s.fds[:0], int64(time.Hour), false, false
	s.On(l.fd)
	if d.Rest(now, s); s.ready {
		return nil
	}
	if s.pauses {
		s.AtMost(s.pauseNs)
		s.pauseNs = min(2*s.pauseNs, lastPauseNs)
	}
	// In copy mode this runs the kernel's send path too, which has nothing left to do.
	ts := unix.NsecToTimespec(s.timeoutNs)
	_, err := unix.Ppoll(s.fds, &ts, nil)
	if err != nil && err != unix.EINTR && err != unix.EAGAIN {
		return os.NewSyscallError("ppoll", err)
	}
	if s.fds[0].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(l.fd, b[:])
	}
	return nil
}
