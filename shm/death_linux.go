package shm

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// watchDeath calls died once, with nothing open, from a goroutine when the process of w is gone.
func watchDeath(w Owner, died func()) (end func(), err error) {
	done := make(chan struct{})
	fd, err := openPidfd(w)
	if errors.Is(err, ErrStale) {
		go func() {
			defer close(done)
			died()
		}()
		return func() { <-done }, nil
	}
	if err != nil {
		return nil, err
	}
	// Non-blocking, so that the runtime's poller takes it: waiting costs a goroutine, no thread.
	f := os.NewFile(uintptr(fd), "pidfd")
	raw, err := f.SyscallConn()
	if err == nil {
		err = f.SetReadDeadline(time.Time{}) // fails when the poller did not take it
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	go func() {
		defer close(done)
		err := raw.Read(exited)
		f.Close()
		if err == nil {
			died()
		}
	}()
	return func() {
		// A deadline ends the wait but, unlike Close, does not race with the goroutine's own.
		_ = f.SetReadDeadline(time.Unix(1, 0))
		<-done
	}, nil
}

// exited reports whether a pidfd says that its process is gone.
func exited(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}
