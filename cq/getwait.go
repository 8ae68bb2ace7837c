package cq

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/pollable"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// Native is a wait object for use outside the library. Which fields are set depends on Object.
type Native struct {
	Object WaitObject
	FD     int // of WaitFD, else -1
	// Cond of WaitMutexCond is for goroutines of the process that reads the queue. Its mutex must be
	// held over TryWait and Wait, or a completion could be signaled in between; and nobody may hold
	// it for good while the queue or set is closed, which takes it to wake who waits.
	//
	//	n.Cond.L.Lock()
	//	for q.TryWait() == nil {
	//		n.Cond.Wait()
	//	}
	//	n.Cond.L.Unlock()
	Cond *sync.Cond
	// PollFDs of WaitPollFD are all to be waited on. The list, which here has one element, is the
	// same as long as ChangeIndex is.
	PollFDs     []int
	ChangeIndex uint64
}

// ErrNoData: there is no wait object to return (ENODATA).
var ErrNoData error = kind.NewSentinel("no wait object: open it with another one",
	Errno(syscall.ENODATA), nil)

// native hands out a wait object.
func native(name string, object WaitObject, face *wake.Face, cond *sync.Cond) (Native, error) {
	n := Native{Object: object, FD: -1}
	fail := func(err error, hint string) (Native, error) {
		return n, &Error{Pkg: kind.Pkg, Op: "getwait", Name: name, Err: err, Hint: hint}
	}
	switch object {
	case WaitNone:
		return fail(ErrNoData, "open it with a wait object")
	case WaitFD:
		n.FD = face.FD()
	case WaitPollFD:
		n.PollFDs, n.ChangeIndex = []int{face.FD()}, 1
	case WaitMutexCond:
		n.Cond = cond
	default:
		return fail(Errno(syscall.ENOSYS), "its wait object is for calls of this library only")
	}
	return n, nil
}

// GetWait returns the wait object, for system calls or for goroutines of this process (fi_control
// with FI_GETWAIT). Before every blocking wait on it TryWait must have succeeded. A descriptor is
// readable after something was published; it is the queue's, and goes with it. Errors are ErrNoData
// for WaitNone, ENOSYS for wait objects that only calls of this library can use, and ErrClosed;
// Native.FD is -1 then. Which kind of object it is says Options().Wait (FI_GETWAITOBJ). GetWait may
// be called from anywhere.
func (q *core) GetWait() (Native, error) {
	if !q.guard.enterAny() {
		return closedNative(q.name)
	}
	defer q.guard.leaveAny()
	return native(q.name, q.opt.Wait, q.face, q.keeper.mutexCond())
}

// GetWait is as for [Queue.GetWait]. One goroutine of the library, with a thread of its own, turns
// what producers ring into the descriptor: a wake through it costs one switch between threads more
// than Wait.
func (s *WaitSet) GetWait() (Native, error) {
	if !s.gate.enterAny() {
		return closedNative("wait set")
	}
	defer s.gate.leaveAny()
	return native("wait set", s.opt.Wait, s.face, s.keeper.mutexCond())
}

// GetWait returns the wait object of this handle: see [Queue.GetWait]. A descriptor is readable
// after the value or the error value changed.
func (c *Counter) GetWait() (Native, error) {
	if !c.guard.enterAny() {
		return closedNative(c.name)
	}
	defer c.guard.leaveAny()
	return native(c.name, c.opt.Wait, c.face, nil)
}

func closedNative(name string) (Native, error) {
	return Native{FD: -1}, &Error{Pkg: kind.Pkg, Op: "getwait", Name: name, Err: ErrClosed}
}

// condKeeper turns the descriptor of a queue into the condition variable of WaitMutexCond. It waits
// in the runtime's poller, so that it costs a goroutine and no thread.
type condKeeper struct {
	cond  *sync.Cond
	file  *os.File // a duplicate of the queue's descriptor
	armed chan struct{}
	done  chan struct{}
}

func newCondKeeper(fd int) (*condKeeper, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	file, raw, err := pollable.File(dup, "wait object")
	if err != nil {
		return nil, err
	}
	k := &condKeeper{file: file, armed: make(chan struct{}, 1), done: make(chan struct{}),
		cond: sync.NewCond(new(sync.Mutex))}
	go k.run(raw)
	return k, nil
}

// run wakes the waiters once per arming, when the descriptor becomes readable, or for good when the
// queue closes.
func (k *condKeeper) run(raw syscall.RawConn) {
	defer close(k.done)
	for range k.armed {
		err := raw.Read(pollable.Readable)
		k.cond.L.Lock()
		k.cond.Broadcast()
		k.cond.L.Unlock()
		if err != nil {
			return
		}
	}
}

// arm is called by a TryWait that found nothing.
func (k *condKeeper) arm() {
	if k == nil {
		return
	}
	select {
	case k.armed <- struct{}{}:
	default: // it is awake already, and waits for this arming next
	}
}

func (k *condKeeper) mutexCond() *sync.Cond {
	if k == nil {
		return nil
	}
	return k.cond
}

// close wakes everybody and ends the goroutine.
func (k *condKeeper) close() {
	if k == nil {
		return
	}
	_ = k.file.SetReadDeadline(time.Unix(1, 0))
	close(k.armed)
	<-k.done
	_ = k.file.Close()
	k.cond.L.Lock()
	k.cond.Broadcast()
	k.cond.L.Unlock()
}

// SignalQueue is [Queue.Signal] from outside (fi_cq_signal): any process of the queue's user ends
// one wait of its reader, without a lane. ErrPeerGone: the reader died, or left the queue. Nothing
// is done then. A signal that a reader did not take goes with it; only if it goes and a successor
// comes during the call, that one may get it. Other errors are
// fs.ErrNotExist, ErrClosed, ErrNoWait for a queue without a wait object, and those of opening
// shared memory. After one of these the signal may be there, and who waits on a descriptor or a set
// not be woken: a second call does that, signals do not add up. It may be called from anywhere.
func SignalQueue(p Place) error {
	if err := p.only("signal", placeNamed); err != nil {
		return err
	}
	name := p.name
	dir, err := p.dir.Sub(name, false)
	if err != nil {
		return failed("signal", name, err)
	}
	side := place.NewNamed(p.dir, name, dir)
	defer side.Close()
	obj, err := side.OpenReader()
	if err != nil {
		return failed("signal", name, err)
	}
	defer obj.Close()
	o, err := stored("signal", name, obj.Header())
	if err == nil && o.Wait == WaitNone {
		err = &Error{Pkg: kind.Pkg, Op: "signal", Name: name, Err: ErrNoWait,
			Hint: "create it with another wait object: its reader never blocks"}
	}
	if err == nil {
		// Whoever owns the file may truncate it meanwhile, and we are perhaps only a tool.
		fault := shm.Guard(func() {
			if err = hasReader(obj, name); err == nil {
				err = signalFrom(side, obj, o)
			}
		})
		err = errors.Join(fault, err)
	}
	return failed("signal", name, err)
}

// hasReader is nil if there is somebody whom a signal can reach. A reader that is stopped lives.
func hasReader(obj *shm.Object, name string) error {
	_, died, err := obj.OwnerDied()
	if err != nil || !died && obj.Owner().State != shm.StateReleased {
		return err
	}
	got := "gone: it left the queue to a successor"
	if died {
		got = "dead"
	}
	return &Error{Pkg: kind.Pkg, Op: "signal", Name: name, Field: "reader", Got: got, Err: ErrPeerGone,
		Hint: "nobody waits; signal the reader that takes the queue over, once it has"}
}

// signalFrom does to the reader what Bell.Signal does inside its process. Of the reader's object
// only the hints are mapped for writing, as for a writer.
func signalFrom(side *place.Named, obj *shm.Object, o shape) error {
	words, err := kind.WordsOf[kind.QueueWords](obj, kind.SectQueue, 0)
	if err != nil {
		return err
	}
	if words.State.Load() == kind.StateClosed {
		return ErrClosed
	}
	hints, err := hintsOf(obj, false, o)
	if err != nil {
		return err
	}
	hold := place.BellHold{Words: &words.Bell, Owner: obj.Owner}
	hold.Dir, hold.FD = side.Bell()
	defer hold.Drop()
	fd := -1
	wake.Signal(&words.Arm, hints, func(generation uint16) int {
		fd, err = side.OpenFace(obj, words, generation)
		return fd
	}, hold.Ring)
	eventfd.Close(fd)
	return signaled(obj, hints, errors.Join(err, hold.Err))
}

// signaled looks again, for a reader that went meanwhile. If it took the signal it may have gone
// for that, and err tells only that its bell went with it.
func signaled(obj *shm.Object, hints *wake.Hints, err error) error {
	gone := hasReader(obj, obj.Header().Name)
	switch {
	case !errors.Is(gone, ErrPeerGone):
		return err
	case wake.Inspect(0, hints).Signal:
		return gone
	}
	return nil
}

// Signal ends one GetEvent, or one wait on the descriptor, see TryGetEvent: one that is waiting
// now, or else the next that finds no event. After Close it is ErrClosed.
func (c *Channel) Signal() error {
	if !c.gate.enter() {
		return ErrClosed
	}
	defer c.gate.leave()
	c.signal.Store(true)
	c.ch.Alert()
	return nil
}
