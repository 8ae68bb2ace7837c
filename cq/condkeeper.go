package cq

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// condKeeper turns the descriptor of a queue into the condition variable of WaitMutexCond. It waits
// in the runtime's poller, so that it costs a goroutine and no thread.
type condKeeper struct {
	mc    MutexCond
	file  *os.File // a duplicate of the queue's descriptor
	armed chan struct{}
	done  chan struct{}
}

func newCondKeeper(fd int) (*condKeeper, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	// Only then the poller takes it; an epoll descriptor does not care.
	if err := unix.SetNonblock(dup, true); err != nil {
		_ = unix.Close(dup)
		return nil, os.NewSyscallError("fcntl", err)
	}
	k := &condKeeper{file: os.NewFile(uintptr(dup), "wait object"), armed: make(chan struct{}, 1),
		done: make(chan struct{})}
	k.mc.cond = sync.NewCond(&k.mc)
	raw, err := k.file.SyscallConn()
	if err == nil {
		err = k.file.SetReadDeadline(time.Time{}) // fails when the poller did not take it
	}
	if err != nil {
		_ = k.file.Close()
		return nil, err
	}
	go k.run(raw)
	return k, nil
}

// run wakes the waiters once per arming, when the descriptor becomes readable, or for good when the
// queue closes.
func (k *condKeeper) run(raw syscall.RawConn) {
	defer close(k.done)
	for range k.armed {
		err := raw.Read(readable)
		k.mc.Lock()
		k.mc.cond.Broadcast()
		k.mc.Unlock()
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

func (k *condKeeper) mutexCond() *MutexCond {
	if k == nil {
		return nil
	}
	return &k.mc
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
	k.mc.Lock()
	k.mc.cond.Broadcast()
	k.mc.Unlock()
}

// readable reports whether a descriptor has something to read, without waiting.
func readable(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}
