package cq

import (
	"errors"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// home is where the objects of a queue live, as its reader needs it: a directory of its own, or
// nothing but descriptors.
type home interface {
	// openLane opens the object of a row's writer for reading. It is fs.ErrNotExist if there is
	// none, and kind.ErrOtherQueue if what stands there is not this queue's.
	openLane(bit int) (*shm.Object, error)
	// changes returns a number that changes when a lane comes.
	changes() (uint64, error)
	// newFace makes the reader's descriptors, so that writers can get at one of them.
	newFace() (*doorbell.Face, error)
	// interrupt ends what Close would have to wait for.
	interrupt()
	// destroy removes the names of a queue whose writers have been told. The reader's object is
	// still ours.
	destroy(reader *shm.Object, rows int) error
	// beside returns the directory where the bell of the reader's process is found, or nil. It
	// stays the home's.
	beside() *shm.Dir
	// vacate removes what is left of a queue that was destroyed, unless others still use it. It
	// comes before close.
	vacate()
	// attached returns what is held of a row's writer if it is of another user, else nil.
	attached(bit int) *attachment
	// retire forgets a row's lane, of another user, and closes it.
	retire(bit int)
	// partAll stops whatever of other users' lanes looks at the queue from other goroutines, before
	// its memory goes.
	partAll()
	// relay has rings of other users' lanes passed on to sets, channels, and goroutines that share
	// the queue, from now on.
	relay(bell *doorbell.Bell)
	close() error
}

// door is a writer's way to the objects of a queue.
type door interface {
	openReader() (*shm.Object, error)
	// claimLane returns a lane object that this process owns, and its row.
	claimLane(reader *shm.Object, rows []kind.RowWords, opt shape) (*shm.Object, int, error)
	// gone reports whether the queue was destroyed, beyond what its words say.
	gone(reader *shm.Object) (bool, error)
	// openFace returns a descriptor that wakes the user of the reader of that generation, or -1.
	openFace(reader *shm.Object, words *kind.QueueWords, generation uint16) int
	// leave gives the lane back: to the next writer, or to nobody if the queue is closed, which
	// last then reports.
	leave(lane *shm.Object, closed func() bool) (last bool, err error)
	// beside returns the directory of the bell of the reader's process, and bell a descriptor of
	// it, which stay the door's; nil and -1 if there is no such way to it.
	beside() *shm.Dir
	bell() int
	vacate()
	close() error
}

// dirHome is the directory of a queue that has a name.
type dirHome struct {
	at   *shm.Dir // where the queue's directory has its name
	name string
	dir  *shm.Dir // the queue's own
}

// homeIn takes over dir. The caller's own handle on the directory above may be closed before the
// home is.
func homeIn(d *shm.Dir, name string, dir *shm.Dir) *dirHome { return &dirHome{d.Dup(), name, dir} }

func (h *dirHome) openLane(bit int) (*shm.Object, error) {
	return h.dir.Open(kind.LaneFile(bit), shm.ReadOnly)
}

func (h *dirHome) beside() *shm.Dir { return h.at }

func (h *dirHome) bell() int { return -1 }

func (h *dirHome) changes() (uint64, error) { return h.dir.Stamp() }

func (h *dirHome) newFace() (*doorbell.Face, error) {
	if err := h.dir.MakeFIFO(kind.FifoFile); err != nil {
		return nil, err
	}
	fifo, err := h.dir.OpenFIFO(kind.FifoFile, true)
	if err != nil {
		return nil, err
	}
	return doorbell.NewFace(fifo)
}

func (h *dirHome) interrupt() {}

// Those of a queue with a name belong to its user.
func (h *dirHome) attached(int) *attachment { return nil }
func (h *dirHome) retire(int)               {}
func (h *dirHome) partAll()                 {}
func (h *dirHome) relay(*doorbell.Bell)     {}

func (h *dirHome) destroy(reader *shm.Object, rows int) error {
	return collect.Destroy(h.dir, reader, rows)
}

// vacate removes the queue's directory if it is empty. That takes no descriptor.
func (h *dirHome) vacate() { _ = h.at.RemoveSub(h.name) }

func (h *dirHome) close() error { return errors.Join(h.dir.Close(), h.at.Close()) }

func (h *dirHome) openReader() (*shm.Object, error) {
	return h.dir.Open(kind.ReaderFile, shm.ReadOnly)
}

func (h *dirHome) claimLane(reader *shm.Object, rows []kind.RowWords, opt shape) (*shm.Object, int,
	error) {
	c := place.Claim{Dir: h.dir, Name: h.name, Queue: opt.attrs(), Reader: reader, Rows: rows}
	return c.Lane()
}

// gone: whoever destroys a queue closes it first and unlinks then, and does not see a lane that
// came later.
func (h *dirHome) gone(reader *shm.Object) (bool, error) {
	linked, err := reader.Linked()
	return !linked, err
}

// openFace gets the reader's own eventfd, or the queue's FIFO where the kernel does not let us
// have it.
func (h *dirHome) openFace(reader *shm.Object, words *kind.QueueWords, _ uint16) int {
	if fd := takeEvent(reader, words); fd >= 0 {
		return fd
	}
	fd, err := h.dir.OpenFIFO(kind.FifoFile, false)
	if err != nil {
		return -1
	}
	return fd
}

// takeEvent duplicates the reader's eventfd, or returns -1. The number must be this reader's, not
// one that its predecessor left; and the reader clears the word before it closes what the number
// means, so that one which still stands afterwards was the right one.
func takeEvent(reader *shm.Object, words *kind.QueueWords) int {
	n, owner := words.Face.Load(), reader.Owner()
	if n == 0 || n >= 1<<31 || words.FaceGen.Load() != owner.Generation {
		return -1
	}
	fd, err := shm.PidfdGetfd(owner, int(n-1))
	if err != nil {
		return -1
	}
	if words.Face.Load() != n || !eventfd.Is(fd) {
		eventfd.Close(fd)
		return -1
	}
	return fd
}

func (h *dirHome) leave(lane *shm.Object, closed func() bool) (last bool, err error) {
	if closed() {
		return true, lane.Unlink()
	}
	err = lane.Release()
	if closed() && lane.Claim(nil) == nil {
		// Closed between the look and the release: its reader found the lane ours.
		return true, lane.Unlink()
	}
	return false, err
}
