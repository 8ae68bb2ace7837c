package shm

import (
	"errors"
	"strings"
	"syscall"
)

// Whoever may write to a file may cut it, and with it what says who owned it. That its owner is
// dead is proved by the lock, which the kernel drops then, and by /proc: no process has it mapped.
// Of a process that cannot be looked at, as one in another PID namespace, the lock is the only
// witness, as it is for an object that is whole; and memory that was cut it cannot use.

// Abandoned is nil if the object of that name was cut and nobody has it any more, and returns how
// many bytes are left of it: of none nothing says that it was one. Else the error is
// [ErrKind] for what was not cut or is no object, and *[BusyError] while somebody has it; or
// fs.ErrNotExist, [ErrName], [ErrOwner], and what the system refuses. A file of no bytes counts as
// an object, unless its name ends in .lock.
func (d *Dir) Abandoned(name string) (bytes uint64, err error) {
	err = d.at("judge what was cut", name, func(dirfd int) error {
		bytes, err = takeCut(dirfd, name, false)
		return err
	})
	return bytes, err
}

// RemoveAbandoned removes the name of what is [Dir.Abandoned]. Errors are those of that.
func (d *Dir) RemoveAbandoned(name string) error {
	return d.at("remove what was cut", name, func(dirfd int) error {
		_, err := takeCut(dirfd, name, true)
		return err
	})
}

func takeCut(dirfd int, name string, remove bool) (bytes uint64, err error) {
	fd, err := sysOpen(dirfd, name, true)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EISDIR) ||
		errors.Is(err, syscall.ENXIO) {
		err = notCut()
	}
	if err != nil {
		return 0, err
	}
	defer giveUp(fd)
	info, err := sysStat(fd)
	if err != nil {
		return 0, err
	}
	if !info.regular() || strings.HasSuffix(name, LockSuffix) {
		return 0, notCut()
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
		return 0, notCut()
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

func notCut() error {
	return &Error{Field: "type", Got: "something else", Want: "an object that was cut", Err: ErrKind}
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
