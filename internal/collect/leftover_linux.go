package collect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/file"
	"github.com/shmring/shmring/internal/mapped"
	"github.com/shmring/shmring/shm"
)

// Bound reports whether the name of a socket may lead to a process: one has bound it and holds it
// open, whether it listens or not, or one has the lock of the name and may be about to bind it. It
// is false for a socket that [RemoveUnbound] has moved aside in a process that died meanwhile. It
// does not connect, so nobody notices.
//
// Errors: [shm.ErrKind] for what is no socket, [shm.ErrOwner], fs.ErrNotExist, and what the system
// refuses.
func Bound(d *shm.Dir, name string) (bound bool, err error) {
	err = d.At(name, func(dirfd int, at string) error {
		bound, err = mayBeBound(dirfd, at)
		return err
	})
	return bound, unlike("probe socket", name, err)
}

func mayBeBound(dirfd int, at string) (bool, error) {
	lock, err := openSocketLock(dirfd, at)
	if err != nil {
		return false, err
	}
	if lock >= 0 {
		defer unix.Close(lock)
		if locked, err := file.Locked(lock, file.Whole, false); locked || err != nil {
			return locked, err
		}
	}
	bound, err := isBound(dirfd, at)
	return bound && !strings.HasSuffix(at, shm.CollectedSuffix), err
}

// RemoveUnbound removes the name of a socket that no process has. Any number of processes may call
// it at once, while others remove the socket and bind the name again: a socket that a process has
// is never removed. If a process binds the name between our two looks, the name is gone for the
// time of some system calls; if this process dies just then, the next collection gives it back.
//
// Errors: EBUSY if a process has the socket or collects at this moment, and those of [Bound].
func RemoveUnbound(d *shm.Dir, name string) error {
	err := d.At(name, func(dirfd int, at string) error {
		bound, err := mayBeBound(dirfd, at)
		if err != nil {
			return err
		}
		if bound {
			return &shm.BusyError{Name: name}
		}
		fd, err := lockDir(dirfd, path.Dir(at))
		if err == nil {
			defer giveUpDir(fd)
			err = collectSocket(fd, path.Base(at))
		}
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, fs.ErrExist) {
			err = &shm.BusyError{Name: name}
		}
		return err
	})
	return unlike("remove socket", name, err)
}

// collectSocket runs under the lock of the directory. A name cannot be removed on the condition
// that it still means what was looked at, so the socket is moved to a name that is ours first, and
// looked at there.
func collectSocket(dirfd int, name string) error {
	if base, ok := strings.CutSuffix(name, shm.CollectedSuffix); ok {
		return settleAside(dirfd, base)
	}
	lock, err := openSocketLock(dirfd, name)
	if err != nil {
		return err
	}
	if lock >= 0 {
		defer file.GiveUp(lock)
		if err := file.Lock(lock, file.Whole, true); err != nil {
			return err
		}
	}
	if err := settleAside(dirfd, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // what a collector left that died
	}
	bound, err := isBound(dirfd, name) // again, for a successor has come since we looked, if ever
	if err == nil && bound {
		err = &shm.BusyError{Name: name}
	}
	if err == nil {
		err = file.MoveNew(dirfd, name, dirfd, name+shm.CollectedSuffix)
	}
	if err != nil {
		return err
	}
	return settleAside(dirfd, name)
}

// settleAside removes the socket that was moved aside from a name, or moves it back. Renaming took
// the lock of the directory in the kernel, which bind(2) holds from when it makes the file until
// the socket is found by it: what is not bound here never will be.
func settleAside(dirfd int, name string) error {
	bound, err := isBound(dirfd, name+shm.CollectedSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && !bound {
		return unix.Unlinkat(dirfd, name+shm.CollectedSuffix, 0)
	}
	// Somebody has it, or it is no socket: it is not ours to take away. If the name was bound anew
	// meanwhile, it stays aside.
	back := file.MoveNew(dirfd, name+shm.CollectedSuffix, dirfd, name)
	if err == nil {
		err = &shm.BusyError{Name: name}
	}
	return errors.Join(err, back)
}

// openSocketLock opens the lock file of a socket. Of none the descriptor is -1.
func openSocketLock(dirfd int, name string) (int, error) {
	fd, err := file.Open(dirfd, name+shm.LockSuffix, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENAMETOOLONG) {
		return -1, nil
	}
	return fd, err
}

// Whoever may write to a file may truncate it, and with it the record of its owner. Two things
// prove that the owner is dead: the lock, which the kernel drops at death, and /proc, where no
// process has the file mapped. If a process cannot be looked at, as one in another PID namespace,
// the lock is the only proof, as it is for an object that is whole; and that process cannot use
// memory that was truncated.

// Truncated returns nil if the object of that name was truncated and no process has it any more.
// bytes is how many bytes are left of it; if none are left, nothing says that the file was an
// object.
//
// Errors: [shm.ErrKind] if the file was not truncated or is no object, *[shm.BusyError] while a
// process has it, fs.ErrNotExist, [shm.ErrName], [shm.ErrOwner], and what the system refuses. A
// file of no bytes counts as an object, unless its name ends in .lock.
func Truncated(d *shm.Dir, name string) (bytes uint64, err error) {
	err = d.At(name, func(dirfd int, at string) error {
		bytes, err = takeTruncated(dirfd, at, false)
		return err
	})
	return bytes, unlike("assess truncated object", name, err)
}

// RemoveTruncated removes the name of an object that is [Truncated], and returns the errors of
// that.
func RemoveTruncated(d *shm.Dir, name string) error {
	err := d.At(name, func(dirfd int, at string) error {
		_, err := takeTruncated(dirfd, at, true)
		return err
	})
	return unlike("remove truncated object", name, err)
}

func takeTruncated(dirfd int, name string, remove bool) (bytes uint64, err error) {
	fd, err := file.Open(dirfd, name, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EISDIR) ||
		errors.Is(err, syscall.ENXIO) { // a link, a directory, a socket
		return 0, notTruncated()
	}
	if err != nil {
		return 0, err
	}
	defer file.GiveUp(fd)
	var its, there unix.Stat_t
	if err := file.Again(func() error { return unix.Fstat(fd, &its) }); err != nil {
		return 0, err
	}
	if its.Mode&unix.S_IFMT != unix.S_IFREG || strings.HasSuffix(name, shm.LockSuffix) {
		return 0, notTruncated()
	}
	if uid := os.Geteuid(); int(its.Uid) != uid || its.Mode&0o077 != 0 {
		return 0, &shm.Error{Field: "owner and mode", Got: [2]uint32{its.Uid, its.Mode & 0o777},
			Want: "this user, and nobody else", Err: shm.ErrOwner}
	}
	if err := startsLikeObject(fd, uint64(max(its.Size, 0))); err != nil {
		return 0, err
	}
	// Under the lock nobody can have the name without our noticing: objects are born whole.
	if err := file.Lock(fd, file.Whole, true); file.Busy(err) {
		return 0, &shm.BusyError{Name: name}
	} else if err != nil {
		return 0, err
	}
	if err := nobodyMaps(&its); err != nil {
		return 0, err
	}
	err = statAt(dirfd, name, &there)
	if err == nil && (there.Ino != its.Ino || there.Dev != its.Dev) {
		err = shm.ErrStale
	}
	if err == nil && remove {
		err = unix.Unlinkat(dirfd, name, 0)
	}
	return uint64(its.Size), err
}

// startsLikeObject is nil if what is left of a file is the beginning of an object.
func startsLikeObject(fd int, size uint64) error {
	const magic = "shmring\x00"
	page := make([]byte, 4096)
	n, err := unix.Pread(fd, page, 0)
	if err != nil {
		return err
	}
	page = page[:n]
	_, err = shm.DecodeHeader(page, size)
	n = min(n, len(magic))
	if !errors.Is(err, shm.ErrTruncated) || string(page[:n]) != magic[:n] {
		return notTruncated()
	}
	return nil
}

func notTruncated() error {
	return &shm.Error{Field: "type", Got: "something else", Want: "a truncated object",
		Err: shm.ErrKind}
}

// nobodyMaps fails if a process that can be looked at has the file mapped.
func nobodyMaps(st *unix.Stat_t) error {
	pids, err := mapped.Processes()
	if err == nil && len(pids) == 0 {
		err = noProc()
	}
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if is, _ := mapped.By(pid, st.Dev, st.Ino); is {
			return &shm.BusyError{PID: pid}
		}
	}
	return nil
}

func statAt(dirfd int, at string, st *unix.Stat_t) error {
	return file.Again(func() error { return unix.Fstatat(dirfd, at, st, unix.AT_SYMLINK_NOFOLLOW) })
}

// links returns how many names the file called name has.
func links(d *shm.Dir, name string) (n uint64, err error) {
	err = d.At(name, func(dirfd int, at string) error {
		var st unix.Stat_t
		err := statAt(dirfd, at, &st)
		n = uint64(st.Nlink)
		return err
	})
	return n, unlike("look at", name, err)
}

// leadsTo reports whether a name in d still leads to the directory that was opened by it: one may
// be removed, made anew or moved meanwhile.
func leadsTo(d *shm.Dir, name string, sub *shm.Dir) (is bool, err error) {
	var there, its unix.Stat_t
	stat := func(into *unix.Stat_t) func(int, string) error {
		return func(dirfd int, at string) error {
			return statAt(dirfd, at, into)
		}
	}
	err = sub.At(".", stat(&its))
	if err == nil {
		err = d.At(name, stat(&there))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
	}
	return err == nil && there.Ino == its.Ino && there.Dev == its.Dev,
		unlike("look at directory", name, err)
}

// unlike fills in operation and name where a call of the system could not know them.
func unlike(op, name string, err error) error {
	if e := (*shm.Error)(nil); errors.As(err, &e) {
		if e.Op == "" {
			e.Op, e.Name = op, name
		}
		return err
	}
	if busy := (*shm.BusyError)(nil); err == nil || errors.As(err, &busy) {
		return err
	}
	return &shm.Error{Op: op, Name: name, Err: err}
}

// isBound reports whether some process has the socket that stands at a name. It asks as a socket
// of a kind that waits for nobody: the kernel looks for the owner of the file before anything else,
// so without one that is ECONNREFUSED, and with one of another kind EPROTOTYPE, whether it listens
// or not. A connection of its own kind would be ECONNREFUSED too before listen(2), and after it
// would trouble whoever accepts.
func isBound(dirfd int, name string) (bool, error) {
	at, err := file.Open(dirfd, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := file.Again(func() error { return unix.Fstat(at, &st) }); err != nil {
		return false, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return false, &shm.Error{Field: "type", Got: fmt.Sprintf("%#o", st.Mode&unix.S_IFMT),
			Want: "a socket", Err: shm.ErrKind}
	}
	if uid := os.Geteuid(); int(st.Uid) != uid {
		return false, &shm.Error{Field: "owner", Got: st.Uid, Want: uid, Err: shm.ErrOwner}
	}
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(s)
	// By the descriptor: the name may mean another file by now, and may be longer than an address.
	to := &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(at)}
	err = file.Again(func() error { return unix.Connect(s, to) })
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return false, nil
	case err == nil, errors.Is(err, unix.EPROTOTYPE), errors.Is(err, unix.EPERM):
		return true, nil // EPERM: a datagram socket that talks to another one only
	case errors.Is(err, unix.ENOENT): // which would say that the socket is gone
		return false, noProc()
	}
	return false, err
}

func noProc() error {
	return &shm.Error{Field: "/proc", Got: "not there", Want: "what descriptors and processes have",
		Err: unix.ENOSYS, Hint: "mount /proc"}
}

// lockDir opens a directory and locks that description, in a way of which nothing else of this
// library knows; EAGAIN when another one has it.
func lockDir(dirfd int, at string) (int, error) {
	fd, err := file.Open(dirfd, at, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, err
	}
	err = file.Again(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// giveUpDir is giveUp of such a lock.
func giveUpDir(fd int) {
	_ = unix.Flock(fd, unix.LOCK_UN)
	_ = unix.Close(fd)
}
