package device

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Listener is the socket of a device process at a path, and the proof that nobody else has it: a
// lock on the file beside it, which the kernel drops when the process ends, however it ends.
type Listener struct {
	*net.UnixListener
	path string
	lock int // private descriptor, never sent, never an *os.File
}

// Listen makes the socket that [Server.Serve] takes. A socket that a dead device process left at
// the path is replaced; that of a living one is [ErrServing]. Everybody may connect: the allow-list
// says who is served. The lock file, path + ".lock", stays when the listener is closed.
func Listen(path string) (*Listener, error) {
	const op = "listen at"
	fd, err := unix.Open(path+".lock", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, failed(op, path, err, "the directory must exist and be writable")
	}
	l := &Listener{path: path, lock: fd}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock); err != nil {
		_ = unix.Close(fd)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			err = ErrServing
		}
		return nil, failed(op, path, err, "stop the other one, or choose another path")
	}
	if err := l.clear(); err != nil {
		_ = unix.Close(fd)
		return nil, failed(op, path, err, "")
	}
	l.UnixListener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err == nil {
		err = os.Chmod(path, 0o666)
	}
	if err != nil {
		_ = l.Close()
		return nil, failed(op, path, err, "")
	}
	return l, nil
}

// clear removes the socket of a predecessor. We have its lock, so it is dead, unless somebody
// removed the lock file; so the socket itself is asked too.
func (l *Listener) clear() error {
	info, err := os.Lstat(l.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%w: something else than a socket is there", unix.EEXIST)
	}
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: l.path, Net: "unixpacket"})
	if err == nil {
		_ = c.Close()
		return ErrServing
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	if err := os.Remove(l.path); !errors.Is(err, os.ErrNotExist) { // a collector was faster
		return err
	}
	return nil
}

// Close removes the socket, and then gives up the lock.
func (l *Listener) Close() error {
	var err error
	if l.UnixListener != nil {
		err = l.UnixListener.Close() // unlinks the path
	}
	if l.lock >= 0 {
		_ = unix.Close(l.lock)
		l.lock = -1
	}
	return err
}
