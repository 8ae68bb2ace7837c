package doorbell

import (
	"os"
	"sync"
	"sync/atomic"

	"github.com/shmring/shmring/internal/eventfd"
	"golang.org/x/sys/unix"
)

// Face is the descriptor side of a bell, owned by the reader: what a user's epoll waits on. Two
// sources stand behind it. An eventfd, which a producer duplicates from the reader's process;
// and a FIFO that it opens by name where the kernel forbids that (ptrace restrictions). The
// user gets an epoll descriptor over both, which can be waited on and nested, and not drained by
// accident.
type Face struct {
	epoll   int
	eventfd int
	fifo    int
	mu      sync.Mutex  // held while a pipe is watched again, or goes
	pipes   []*facePipe // of lanes of other users
	tail    func(bit int) uint64
	calls   atomic.Uint64 // system calls to reset it
}

// NewFace makes the reader's descriptors. fifo is both ends of a FIFO that does not block, which it
// takes over, also if it fails; or -1 for a bell that only this process and those it passes the
// eventfd to ring.
func NewFace(fifo int) (_ *Face, err error) {
	f := &Face{epoll: -1, eventfd: -1, fifo: fifo}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if f.eventfd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	if f.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	for _, fd := range []int{f.eventfd, f.fifo} {
		if fd < 0 {
			continue
		}
		ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
		if err = unix.EpollCtl(f.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
			return nil, os.NewSyscallError("epoll_ctl", err)
		}
	}
	return f, nil
}

// FD returns the descriptor to wait on. It is readable after a producer rang.
func (f *Face) FD() int { return f.epoll }

// EventFD returns the descriptor that producers write to.
func (f *Face) EventFD() int { return f.eventfd }

// Set makes the descriptor readable.
func (f *Face) Set() { _ = eventfd.Write(f.eventfd) }

// Reset makes the descriptor unreadable. O_NONBLOCK is shared by all holders of an eventfd, so it
// is not relied on: only this goroutine reads, and only what epoll says is there.
func (f *Face) Reset() error {
	var evs [8]unix.EpollEvent
	var buf [512]byte
	for range 64 {
		f.calls.Add(1)
		n, err := unix.EpollWait(f.epoll, evs[:], 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("epoll_wait", err)
		}
		if n == 0 {
			return nil
		}
		for _, ev := range evs[:n] {
			f.calls.Add(1)
			if ev.Events == 0 {
				continue
			}
			if p := f.pipe(int(ev.Fd)); p != nil {
				f.drained(p, buf[:])
				continue
			}
			_, err := unix.Read(int(ev.Fd), buf[:])
			if err != nil && err != unix.EAGAIN && err != unix.EINTR {
				return os.NewSyscallError("read", err)
			}
		}
	}
	// A peer that writes without end leaves the descriptor readable: the user looks and finds
	// nothing, which costs time but loses nothing.
	return nil
}

// resets returns how many system calls the reader made to reset the descriptor. It may be called
// from anywhere, and on nil.
func (f *Face) resets() uint64 {
	if f == nil {
		return 0
	}
	return f.calls.Load()
}

// Close closes the descriptors. It is idempotent, and harmless on nil.
func (f *Face) Close() {
	if f == nil {
		return
	}
	for len(f.pipes) > 0 {
		f.forget(f.pipes[0].bit)
	}
	for _, fd := range []*int{&f.epoll, &f.eventfd, &f.fifo} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}
