package device

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/shm"
)

// Listener is the socket of a device process at a path, and the proof that nobody else has it: a
// lock on the file beside it, which the kernel drops when the process ends, however it ends. What
// is removed is removed from the directory that the path led to first, whatever it leads to since.
type Listener struct {
	*net.UnixListener
	path string
	name string // the last part of the path
	dir  int    // descriptor of the directory
	lock int    // private descriptor, never sent, never an *os.File
	made unix.Stat_t
}

// Listen makes the socket that [Server.Serve] takes. A socket that a dead device process left at
// the path is replaced; that of a living one is [ErrServing]. Everybody may connect: the allow-list
// says who is served. The lock file, path + ".lock", stays when the listener is closed.
func Listen(path string) (*Listener, error) {
	const op = "listen at"
	l := &Listener{path: path, name: filepath.Base(path), dir: -1, lock: -1}
	hint, err := l.open()
	if err != nil {
		_ = l.Close()
		return nil, failed(op, path, err, hint)
	}
	return l, nil
}

func (l *Listener) open() (hint string, err error) {
	const flags = unix.O_CLOEXEC | unix.O_NOFOLLOW
	l.dir, err = unix.Open(filepath.Dir(l.path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		l.lock, err = unix.Openat(l.dir, l.name+shm.LockSuffix, unix.O_RDWR|unix.O_CREAT|flags, 0o600)
	}
	if err != nil {
		return "the directory must exist and be writable", err
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET}
	if err := unix.FcntlFlock(uintptr(l.lock), unix.F_OFD_SETLK, &lock); err != nil {
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			err = ErrServing
		}
		return "stop the other one, or choose another path", err
	}
	if err := l.clear(); err != nil {
		return "", err
	}
	// The kernel binds by a path only, and tools show that path: so it is the operator's and not one
	// below /proc. Whether it led to our directory is seen afterwards.
	l.UnixListener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: l.path, Net: "unixpacket"})
	if err != nil {
		return "", err
	}
	l.SetUnlinkOnClose(false) // that is by the path
	return "", l.invite()
}

// invite lets everybody connect.
func (l *Listener) invite() error {
	fd, err := unix.Openat(l.dir, l.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &l.made); err != nil {
		return err
	}
	if l.made.Mode&unix.S_IFMT != unix.S_IFSOCK {
		l.made = unix.Stat_t{}
		return fmt.Errorf("%w: something else than a socket is there", unix.EEXIST)
	}
	return unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), 0o666, 0)
}

// clear removes the socket of a predecessor. We have its lock, so it is dead, unless somebody
// removed the lock file; so the socket itself is asked too.
func (l *Listener) clear() error {
	var there unix.Stat_t
	err := unix.Fstatat(l.dir, l.name, &there, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if there.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("%w: something else than a socket is there", unix.EEXIST)
	}
	at := fmt.Sprintf("/proc/self/fd/%d/%s", l.dir, l.name)
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: at, Net: "unixpacket"})
	if err == nil {
		_ = c.Close()
		return ErrServing
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	return l.remove() // a collector may be faster
}

func (l *Listener) remove() error {
	if err := unix.Unlinkat(l.dir, l.name, 0); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Close removes the socket, and then gives up the lock.
func (l *Listener) Close() error {
	var there unix.Stat_t
	var err error
	if l.made.Ino != 0 && unix.Fstatat(l.dir, l.name, &there, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		there.Ino == l.made.Ino && there.Dev == l.made.Dev {
		err = l.remove()
	}
	if l.UnixListener != nil {
		err = errors.Join(err, l.UnixListener.Close())
	}
	for _, fd := range []*int{&l.lock, &l.dir} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
	l.made = unix.Stat_t{}
	return err
}
