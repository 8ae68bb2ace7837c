package shm

import (
	"errors"
	"fmt"
	"syscall"
)

// MakeFIFO makes a FIFO of that name for this user, unless the name is taken. Errors: [ErrName],
// [ErrNoSpace], and what the system refuses.
func (d *Dir) MakeFIFO(name string) error {
	return d.at("make FIFO", name, func(dirfd int) error {
		err := sysMakeFIFO(dirfd, name)
		switch {
		case errors.Is(err, syscall.EEXIST):
			return nil
		case errors.Is(err, syscall.ENOSPC):
			return fmt.Errorf("%w: %w", ErrNoSpace, err)
		}
		return err
	})
}

// OpenFIFO opens a FIFO to write to it, or both ends of it, so that it has a writer as long as the
// reader lives and no end of file is ever read. It never blocks. Errors: [ErrName], [ErrKind] for
// what is no FIFO, fs.ErrNotExist, ENXIO if nobody reads, and what the system refuses.
func (d *Dir) OpenFIFO(name string, both bool) (fd int, err error) {
	fd = -1
	err = d.at("open FIFO", name, func(dirfd int) error {
		if fd, err = sysOpenFIFO(dirfd, name, both); err != nil {
			return err
		}
		info, err := sysStat(fd)
		if err == nil && !info.fifo() {
			err = &Error{Field: "type", Got: fmt.Sprintf("%#o", info.mode), Want: "a FIFO", Err: ErrKind,
				Hint: "remove it"}
		}
		if err != nil {
			sysClose(fd)
			fd = -1
		}
		return err
	})
	return fd, err
}

// Remove removes a name that is not a directory's, and checks nothing: use [Object.Unlink] for an
// object. Errors: [ErrName], fs.ErrNotExist, and what the system refuses.
func (d *Dir) Remove(name string) error {
	return d.at("remove", name, func(dirfd int) error { return sysUnlink(dirfd, name) })
}

// Links returns how many names the file called name has. Errors are those of [Dir.Remove].
func (d *Dir) Links(name string) (n uint64, err error) {
	err = d.at("look at", name, func(dirfd int) error {
		info, err := sysStatAt(dirfd, name)
		n = info.nlink
		return err
	})
	return n, err
}

// at does something to a name by the directory's descriptor.
func (d *Dir) at(op, name string, do func(dirfd int) error) error {
	if err := checkName(op, name); err != nil {
		return err
	}
	ref, err := d.use()
	if err != nil {
		return named(op, name, err)
	}
	defer ref.drop()
	return named(op, name, do(ref.fd))
}
