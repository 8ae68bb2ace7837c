package shm

import (
	"errors"
	"strings"
)

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
	err = d.at("assess truncated object", name, func(dirfd int) error {
		bytes, err = takeTruncated(dirfd, name, false)
		return err
	})
	return bytes, err
}

// RemoveAbandoned removes the name of an object that is [Dir.Abandoned], and returns the errors of
// that.
func (d *Dir) RemoveAbandoned(name string) error {
	return d.at("remove truncated object", name, func(dirfd int) error {
		_, err := takeTruncated(dirfd, name, true)
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
