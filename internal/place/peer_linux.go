package place

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/pollable"
	"github.com/shmring/shmring/shm"
)

// identify asks the kernel who connected the other end, and keeps what tells of its death.
func (p *Peer) identify(socket int) error {
	cred, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return err
	}
	p.PID, p.UID, p.GID = int(cred.Pid), int(cred.Uid), int(cred.Gid)
	if p.Groups, err = peerGroups(socket); err != nil {
		return err
	}
	fd, err := peerPidfd(socket, p.PID, p.UID)
	if err != nil {
		return err
	}
	if p.process, _, err = pollable.File(fd, "pidfd"); err != nil {
		return err
	}
	dup, err := unix.FcntlInt(uintptr(socket), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	p.conn, _, err = pollable.File(dup, "connection")
	return err
}

// peerPidfd opens the peer's process. Before Linux 6.5 the kernel tells its number only, which may
// mean another process by now; one of another user is recognised, and the caller's rule that the
// connection must have ended as well keeps one of the same user from doing harm.
func peerPidfd(socket, pid, uid int) (int, error) {
	fd, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	switch {
	case err == nil:
		return fd, nil
	case err == unix.ESRCH, err == unix.EINVAL: // reaped already
		return -1, errGone()
	case err != unix.ENOPROTOOPT:
		return -1, os.NewSyscallError("SO_PEERPIDFD", err)
	}
	return numberedPidfd(pid, uid)
}

func numberedPidfd(pid, uid int) (int, error) {
	if pid <= 0 {
		return -1, fmt.Errorf("%w: the peer is in another PID namespace", errors.ErrUnsupported)
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err == unix.ESRCH {
		return -1, errGone()
	}
	if err != nil {
		return -1, os.NewSyscallError("pidfd_open", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d", pid), &st); err == nil && int(st.Uid) != uid &&
		st.Uid != 0 { // a process that may not be dumped belongs to root there
		_ = unix.Close(fd)
		return -1, errGone()
	}
	return fd, nil
}

// waitExit waits until a pidfd says that its process is gone, and is false if it was stopped.
func waitExit(f *os.File) bool {
	return waitFor(f, pollable.Readable)
}

// waitHangUp waits until the other end of a connection is closed. It reads nothing: what is sent
// belongs to others who use the connection.
func waitHangUp(f *os.File) bool {
	return waitFor(f, func(fd uintptr) bool {
		return pollable.Ready(fd, unix.POLLRDHUP)&(unix.POLLHUP|unix.POLLERR) != 0
	})
}

func waitFor(f *os.File, done func(fd uintptr) bool) bool {
	raw, err := f.SyscallConn()
	return err == nil && raw.Read(done) == nil
}

// stopWaiting ends a wait. A deadline does, and unlike a close does not race with the waiter.
func stopWaiting(f *os.File) {
	if f != nil {
		_ = f.SetReadDeadline(time.Unix(1, 0))
	}
}

func (p *Peer) mute(b []byte, enough func([]byte) bool) (n int, err error) {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return 0, os.NewSyscallError("shutdown", err)
	}
	cerr := raw.Control(func(fd uintptr) {
		n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err != nil || !enough(b[:n]) {
			n = 0
			// ENOTCONN: the peer has closed its end. What it sent is there all the same.
			if err = unix.Shutdown(int(fd), unix.SHUT_RD); err != nil && err != unix.ENOTCONN {
				return
			}
		}
		for range 4 { // an error of the connection comes before what was sent, once
			n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
			if err == nil {
				return
			}
			n = 0
		}
	})
	if cerr != nil {
		err = cerr
	}
	return n, os.NewSyscallError("recvfrom", err)
}

func errGone() error {
	return &shm.Error{Field: "process", Got: "gone", Want: "alive", Err: shm.ErrStale}
}

// peerUser returns the user at the other end of a socket, as it was when it connected.
func peerUser(fd int) (uid int, err error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return -1, err
	}
	return int(cred.Uid), nil
}

// descriptorOf duplicates descriptor fd of the process of w into this one, close-on-exec. It needs
// the right to trace that process.
func descriptorOf(w shm.Owner, fd int) (int, error) {
	if w.PIDNS == 0 || w.PIDNS != shm.Self().PIDNS {
		return -1, fmt.Errorf("%w: it is in another PID namespace", errors.ErrUnsupported)
	}
	pidfd, err := unix.PidfdOpen(w.PID, 0)
	if err == unix.ESRCH {
		return -1, errGone()
	}
	if err != nil {
		return -1, os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(pidfd)
	// Who it is is asked after the descriptor exists: from then on the number cannot come to mean
	// another process unnoticed.
	if alive, known := shm.ProcessAlive(w); known && !alive {
		return -1, errGone()
	} else if !known {
		return -1, fmt.Errorf("%w: /proc hides it", errors.ErrUnsupported)
	}
	return unix.PidfdGetfd(pidfd, fd, 0)
}
