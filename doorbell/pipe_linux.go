package doorbell

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/spin"
)

// writeByte writes a byte to the writing end of a pipe, and never waits: O_NONBLOCK is shared by
// all holders of a descriptor, so that the reader may have taken it away. A full pipe is readable.
func writeByte(fd int) error {
	one := []byte{1}
	_, err := unix.Pwritev2(fd, [][]byte{one}, -1, unix.RWF_NOWAIT)
	if err == unix.EOPNOTSUPP { // before Linux 6.4: this side alone fills it, so that room stays
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if n, perr := unix.Poll(p, 0); perr != nil || n == 0 {
			return perr
		}
		_, err = unix.Write(fd, one)
	}
	if err == unix.EAGAIN {
		return nil
	}
	return err
}

// facePipe is the reading end of a lane's pipe behind a face. It is watched for one event at a
// time, and again once that was taken.
type facePipe struct {
	bit, fd int
	alarms
	gone bool // under Face.mu
}

// Listen puts the reading end of a lane's pipe behind the descriptor, in place of another one of
// that lane; it stays the caller's until then. -1 only takes the other one away. The face's bell
// must be locked. It is harmless on nil.
func (f *Face) Listen(bit, fd int) {
	f.forget(bit)
	if f == nil || fd < 0 {
		return
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(fd)}
	if unix.EpollCtl(f.epoll, unix.EPOLL_CTL_ADD, fd, &ev) == nil {
		f.pipes = append(f.pipes, &facePipe{bit: bit, fd: fd})
	}
}

// forget takes a lane's pipe away.
func (f *Face) forget(bit int) {
	if f == nil {
		return
	}
	for i, p := range f.pipes {
		if p.bit == bit {
			f.mu.Lock()
			defer f.mu.Unlock()
			p.gone = true
			_ = unix.EpollCtl(f.epoll, unix.EPOLL_CTL_DEL, p.fd, nil)
			f.pipes = append(f.pipes[:i], f.pipes[i+1:]...)
			return
		}
	}
}

func (f *Face) pipe(fd int) *facePipe {
	for _, p := range f.pipes {
		if p.fd == fd {
			return p
		}
	}
	return nil
}

// drained empties a pipe that was readable and watches it again: at once, or after a pause if that
// was for nothing too often. One whose writer closed it is not watched any more, for it would be
// readable for ever. O_NONBLOCK is the reader's own here: nobody else has this end.
func (f *Face) drained(p *facePipe, buf []byte) {
	n, err := unix.Read(p.fd, buf)
	if n == 0 && err == nil {
		f.forget(p.bit)
		return
	}
	crash.At(crash.PipeEmptied)
	if f.tail != nil {
		p.note(f.tail(p.bit))
	}
	if p.quietNs == 0 {
		f.watchAgain(p)
		return
	}
	time.AfterFunc(time.Duration(p.quietNs-spin.Now()), func() { f.watchAgain(p) })
}

// watchAgain may come late, from the end of a pause.
func (f *Face) watchAgain(p *facePipe) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.gone {
		return
	}
	f.calls.Add(1)
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(p.fd)}
	_ = unix.EpollCtl(f.epoll, unix.EPOLL_CTL_MOD, p.fd, &ev)
}

// tailBy tells the face how far a lane has come.
func (f *Face) tailBy(tail func(bit int) uint64) { f.tail = tail }
