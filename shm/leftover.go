package shm

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
)

// Bound reports whether the name of a socket may lead to a process: one has bound it and holds it
// open, whether it listens or not, or one has the lock of the name and may be about to bind it. It
// is false for a socket that [Dir.RemoveUnbound] has moved aside in a process that died meanwhile.
// It does not connect, so nobody notices.
//
// Errors: [ErrKind] for what is no socket, [ErrOwner], fs.ErrNotExist, and what the system refuses.
func (d *Dir) Bound(name string) (bool, error) {
	const op = "probe socket"
	ref, err := d.socketDir(op, name)
	if err != nil {
		return false, err
	}
	defer ref.drop()
	lock, err := openSocketLock(ref.fd, name)
	if err != nil {
		return false, named(op, name, err)
	}
	if lock >= 0 {
		defer sysClose(lock)
		if locked, err := sysLocked(lock); locked || err != nil {
			return locked, named(op, name, err)
		}
	}
	bound, err := sysBound(ref.fd, name)
	return bound && !strings.HasSuffix(name, asideSuffix), named(op, name, err)
}

// RemoveUnbound removes the name of a socket that no process has. Any number of processes may call
// it at once, while others remove the socket and bind the name again: a socket that a process has
// is never removed. If a process binds the name between our two looks, the name is gone for the
// time of some system calls; if this process dies just then, the next collection gives it back.
//
// Errors: EBUSY if a process has the socket or collects at this moment, and those of [Dir.Bound].
func (d *Dir) RemoveUnbound(name string) error {
	const op = "remove socket"
	bound, err := d.Bound(name)
	if err != nil {
		return err
	}
	if bound {
		return &BusyError{Name: name}
	}
	ref, err := d.socketDir(op, name)
	if err != nil {
		return err
	}
	defer ref.drop()
	fd, err := sysLockDir(ref.fd)
	if err == nil {
		defer giveUpDir(fd)
		err = collectSocket(fd, name)
	}
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, fs.ErrExist) {
		err = &BusyError{Name: name}
	}
	return named(op, name, err)
}

// collectSocket runs under the lock of the directory. A name cannot be removed on the condition
// that it still means what was looked at, so the socket is moved to a name that is ours first, and
// looked at there.
func collectSocket(dirfd int, name string) error {
	if base, ok := strings.CutSuffix(name, asideSuffix); ok {
		return settleAside(dirfd, base)
	}
	lock, err := openSocketLock(dirfd, name)
	if err != nil {
		return err
	}
	if lock >= 0 {
		defer giveUp(lock)
		if err := sysLock(lock); err != nil {
			return err
		}
	}
	if err := settleAside(dirfd, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // what a collector left that died
	}
	bound, err := sysBound(dirfd, name) // again, for a successor has come since we looked, if ever
	if err == nil && bound {
		err = &BusyError{Name: name}
	}
	if err == nil {
		err = sysRenameNew(dirfd, name, name+asideSuffix)
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
	bound, err := sysBound(dirfd, name+asideSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && !bound {
		return sysUnlink(dirfd, name+asideSuffix)
	}
	// Somebody has it, or it is no socket: it is not ours to take away. If the name was bound anew
	// meanwhile, it stays aside.
	back := sysRenameNew(dirfd, name+asideSuffix, name)
	if err == nil {
		err = &BusyError{Name: name}
	}
	return errors.Join(err, back)
}

// openSocketLock opens the lock file of a socket. Of none the descriptor is -1.
func openSocketLock(dirfd int, name string) (int, error) {
	fd, err := sysOpen(dirfd, name+LockSuffix, true)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENAMETOOLONG) {
		return -1, nil
	}
	return fd, err
}

// socketDir returns the descriptor of the directory, with a reference that the caller drops. Names
// of sockets are freer than those of objects.
func (d *Dir) socketDir(op, name string) (*dirRef, error) {
	if name == "" || name == "." || name == ".." || filepath.Base(name) != name {
		return nil, &Error{Op: op, Name: name, Err: ErrName, Hint: "a name is not a path"}
	}
	ref, err := d.use()
	return ref, named(op, name, err)
}

// Whoever may write to a file may truncate it, and with it the record of its owner. Two things
// prove that the owner is dead: the lock, which the kernel drops at death, and /proc, where no
// process has the file mapped. If a process cannot be looked at, as one in another PID namespace,
// the lock is the only proof, as it is for an object that is whole; and that process cannot use
// memory that was truncated.

// Abandoned returns nil if the object of that name was truncated and no process has it any more.
// bytes is how many bytes are left of it; if none are left, nothing says that the file was an
// object.
//
// Errors: [ErrKind] if the file was not truncated or is no object, *[BusyError] while a process has
// it, fs.ErrNotExist, [ErrName], [ErrOwner], and what the system refuses. A file of no bytes counts
// as an object, unless its name ends in .lock.
func (d *Dir) Abandoned(name string) (bytes uint64, err error) {
	err = d.at("assess truncated object", name, checkName, func(dirfd int, at string) error {
		bytes, err = takeTruncated(dirfd, at, false)
		return err
	})
	return bytes, err
}

// RemoveAbandoned removes the name of an object that is [Dir.Abandoned], and returns the errors of
// that.
func (d *Dir) RemoveAbandoned(name string) error {
	return d.at("remove truncated object", name, checkName, func(dirfd int, at string) error {
		_, err := takeTruncated(dirfd, at, true)
		return err
	})
}

func takeTruncated(dirfd int, name string, remove bool) (bytes uint64, err error) {
	fd, err := openFile(dirfd, name, true)
	if err != nil {
		return 0, err
	}
	defer giveUp(fd)
	info, err := sysStat(fd)
	if err != nil {
		return 0, err
	}
	if !info.regular() || strings.HasSuffix(name, LockSuffix) {
		return 0, notTruncated()
	}
	if err := checkPrivate(info); err != nil {
		return 0, err
	}
	page, err := readPage(fd)
	if err != nil {
		return 0, err
	}
	n := min(len(page), len(magic))
	_, err = DecodeHeader(page, uint64(max(info.size, 0)))
	if !errors.Is(err, ErrTruncated) || string(page[:n]) != magic[:n] {
		return 0, notTruncated()
	}
	// Under the lock nobody can have the name without our noticing: objects are born whole.
	if err := sysLock(fd); isBusy(err) {
		return 0, &BusyError{Name: name}
	} else if err != nil {
		return 0, err
	}
	if err := nobodyMaps(info); err != nil {
		return 0, err
	}
	there, err := sysStatAt(dirfd, name)
	if err == nil && (there.ino != info.ino || there.dev != info.dev) {
		err = ErrStale
	}
	if err == nil && remove {
		err = sysUnlink(dirfd, name)
	}
	return uint64(info.size), err
}

func notTruncated() error {
	return &Error{Field: "type", Got: "something else", Want: "a truncated object", Err: ErrKind}
}

// nobodyMaps fails if a process that can be looked at has the file mapped.
func nobodyMaps(file fileInfo) error {
	pids, err := sysProcesses()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if mapped, _ := sysMaps(pid, file); mapped {
			return &BusyError{PID: pid}
		}
	}
	return nil
}
