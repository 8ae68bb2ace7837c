package collect

import (
	"errors"
	"io/fs"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// Destroy removes the objects of a queue in its directory whose reader is this process, and has
// condemned it: lanes that nobody owns, the FIFO, and last the reader object, so that nothing of a
// new queue of this name is there yet. A lane of a living writer stays; that one removes it when it
// closes.
func Destroy(dir *shm.Dir, reader *shm.Object, rows int) error {
	var left error
	for row := 1; row < rows; row++ {
		if err := destroyLane(dir, kind.LaneFile(row)); left == nil {
			left = err // others are left for the same reason
		}
	}
	crash.At(crash.CloseLanes)
	return errors.Join(left, removeFIFO(dir), reader.Unlink())
}

// destroyLane removes a lane whose writer released it or is provably dead. It fails if this process
// cannot look at one that is there.
func destroyLane(dir *shm.Dir, name string) error {
	obj, err := dir.Open(name, shm.ReadWrite)
	if err == nil {
		if err = obj.Claim(nil); err == nil {
			_ = obj.Unlink()
		}
		_ = obj.Close()
	}
	if !kind.Starved(err) {
		return nil
	}
	return &shm.Error{Pkg: kind.Pkg, Op: "remove lane", Name: name, Err: err,
		Hint: "it may stay until there is a new queue of this name, or for shmctl gc"}
}

func removeFIFO(dir *shm.Dir) error {
	err := dir.Remove(kind.FifoFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
