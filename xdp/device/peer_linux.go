package device

import (
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// peerOf returns who connected, or listens, at the other end of a socket.
func peerOf(c *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		err = e
	}
	return cred, err
}

// watchPeer ends the reading of a connection when the process at its other end is gone: the kernel
// says so by the end of the connection too, but not while a child of that process holds it. Before
// Linux 6.5 there is only the end of the connection.
func watchPeer(c *net.UnixConn) (stop func()) {
	none := func() {}
	raw, err := c.SyscallConn()
	if err != nil {
		return none
	}
	fd := -1
	_ = raw.Control(func(s uintptr) {
		if n, err := unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
			fd = n
		}
	})
	if fd < 0 || unix.SetNonblock(fd, true) != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return none
	}
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "pidfd")
	pid, err := f.SyscallConn()
	if err == nil {
		err = f.SetReadDeadline(time.Time{}) // fails when the runtime's poller did not take it
	}
	if err != nil {
		_ = f.Close()
		return none
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer f.Close()
		if pid.Read(gone) == nil {
			_ = c.CloseRead()
		}
	}()
	return func() {
		_ = f.SetReadDeadline(time.Unix(1, 0))
		<-done
	}
}

// gone reports whether a pidfd says that its process has ended.
func gone(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}
