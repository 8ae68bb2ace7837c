package wake

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/futex"
	"github.com/shmring/shmring/internal/retry"
	"github.com/shmring/shmring/internal/spin"
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
	mu      sync.Mutex  // held while a pipe comes, is watched again, or goes
	pipes   []*facePipe // of lanes of other users
	later   retry.Later // watches those that the kernel did not take
	tail    func(bit int) uint64
	calls   atomic.Uint64 // system calls to reset it
}

// NewFace makes the reader's descriptors. fifo is both ends of a FIFO that does not block, which it
// takes over, also if it fails; or -1 for a bell that only this process and those it passes the
// eventfd to ring.
func NewFace(fifo int) (_ *Face, err error) {
	f := &Face{epoll: -1, eventfd: -1, fifo: fifo}
	f.later.Try = f.watchLate
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
	f.later.Close()
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

	// Under Face.mu.
	watched bool // it is behind the descriptor
	gone    bool
}

// Listen puts the reading end of a lane's pipe behind the descriptor, in place of another one of
// that lane; it stays the caller's until then. -1 only takes the other one away. The face's bell
// must be locked. It is harmless on nil.
func (f *Face) Listen(bit, fd int) {
	f.forget(bit)
	if f == nil || fd < 0 {
		return
	}
	p := &facePipe{bit: bit, fd: fd}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pipes = append(f.pipes, p)
	f.watch(p)
}

// watch watches a pipe for one event. A pipe that the kernel does not take, since the user watches
// too many or for want of memory, is tried again later: its writer may ring once only. The lock is
// held.
func (f *Face) watch(p *facePipe) {
	how := unix.EPOLL_CTL_ADD
	if p.watched {
		how = unix.EPOLL_CTL_MOD
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(p.fd)}
	if p.watched = unix.EpollCtl(f.epoll, how, p.fd, &ev) == nil || p.watched; !p.watched {
		f.later.Want()
	}
}

// watchLate watches the pipes that the kernel had not taken.
func (f *Face) watchLate(time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pipes {
		if !p.watched {
			f.watch(p)
		}
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
	if !p.gone {
		f.calls.Add(1)
		f.watch(p)
	}
}

// tailBy tells the face how far a lane has come.
func (f *Face) tailBy(tail func(bit int) uint64) { f.tail = tail }

// forwarded are all forwarders of the process. Their threads are their own, so that what other
// users ring holds up nobody who waits.
var forwarded = futex.Pool{BeforeSleep: func() { crash.At(crash.RelaySleep) }}

// forwarder listens to one producer of another user for those who cannot sleep on its word: wait
// sets, channels, and goroutines that share a queue. A thread sleeps on the words of many, and each
// ring is passed on as the producer itself would have rung.
//
//	K1 load rung            K2 mark, ring (Bell.ringFor)            K3 sleep on the words
type forwarder struct {
	word  *atomic.Uint32 // mapped read-only
	heard uint32
	level func() uint64 // the lane's tail, loaded afresh
	ring  func()
	alarms
}

// Forward passes on the rings of a producer of another user, who has this row and counts them in
// rung, until stop. After that the word is not looked at. level returns the lane's tail afresh. It
// is called from other goroutines, and must not wait. The first ring is passed on at once: whatever
// came before counts as one. Forward may be called from anywhere.
func (b *Bell) Forward(bit int, rung *atomic.Uint32, level func() uint64) (stop func()) {
	f := &forwarder{word: rung, level: level, ring: func() { b.ringFor(bit) },
		heard: rung.Load() - 1}
	f.tail = level() - 1
	t := forwarded.Join(f)
	return func() { forwarded.Leave(t, f) }
}

// Look is K1 and K2. What is slept on afterwards is the value that was passed on.
func (f *forwarder) Look() (on futex.Watched, untilNs int64, stays bool) {
	f.pass()
	if f.quiet() {
		return futex.Watched{}, f.quietNs, true
	}
	return futex.Watched{Value: uint64(f.heard), Word: f.word}, 0, true
}

func (f *forwarder) pass() {
	v := f.word.Load() // K1
	if v == f.heard || f.quiet() {
		return
	}
	f.heard = v
	f.note(f.level())
	crash.At(crash.RelayHeard)
	f.ring() // K2
}

// passAll passes on what was rung and is still on its way through a thread, so that what was posted
// before a look is seen by it.
func passAll() {
	forwarded.Each(func(s futex.Sleeper) { s.(*forwarder).pass() })
}
