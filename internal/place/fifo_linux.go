package place

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/file"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// openFIFO opens the FIFO of a queue to write to it; or both ends of it, so that it has a writer as
// long as the reader lives and no end of file is ever read: then it is made unless it is there. It
// never blocks. Errors: [shm.ErrKind] for what is no FIFO, [shm.ErrNoSpace], fs.ErrNotExist, ENXIO
// if nobody reads, and what the system refuses.
func openFIFO(d *shm.Dir, both bool) (fd int, err error) {
	err = d.At(kind.FifoFile, func(dirfd int, at string) error {
		fd, err = openFIFOAt(dirfd, at, both)
		return err
	})
	if err == nil {
		return fd, nil
	}
	if e := (*shm.Error)(nil); !errors.As(err, &e) {
		err = &shm.Error{Op: "open FIFO", Name: kind.FifoFile, Err: err}
	}
	return -1, err
}

func openFIFOAt(dirfd int, at string, both bool) (fd int, err error) {
	access := unix.O_WRONLY
	if both {
		access = unix.O_RDWR
		err := unix.Mkfifoat(dirfd, at, 0o600)
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			return -1, fmt.Errorf("%w: %w", shm.ErrNoSpace, err)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return -1, err
		}
	}
	if fd, err = file.Open(dirfd, at, access|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0); err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFIFO {
		err = &shm.Error{Op: "open FIFO", Name: kind.FifoFile, Field: "type",
			Got: fmt.Sprintf("%#o", st.Mode), Want: "a FIFO", Err: shm.ErrKind, Hint: "remove it"}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
