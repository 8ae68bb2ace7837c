package cq

import (
	"errors"
	"io/fs"
	"sync"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// readerSide is where the objects of a queue live, as its reader needs it: a directory of its own,
// or nothing but descriptors.
type readerSide interface {
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
	// stays the side's.
	beside() *shm.Dir
	// removeDir removes what is left of a queue that was destroyed, unless others still use it. It
	// comes before close.
	removeDir()
	// attached returns what is held of a row's writer if it is of another user, else nil.
	attached(bit int) *attachment
	// retire forgets a row's lane, of another user, and closes it.
	retire(bit int)
	// detachAll stops whatever of other users' lanes looks at the queue from other goroutines, before
	// its memory goes.
	detachAll()
	// forward has rings of other users' lanes passed on to sets, channels, and goroutines that share
	// the queue, from now on.
	forward(bell *doorbell.Bell)
	close() error
}

// writerSide is a writer's way to the objects of a queue.
type writerSide interface {
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
	// it, which stay the side's; nil and -1 if there is no such way to it.
	beside() *shm.Dir
	bell() int
	removeDir()
	close() error
}

// namedSide is the directory of a queue that has a name, for its reader and its writers.
type namedSide struct {
	at   *shm.Dir // where the queue's directory has its name
	name string
	dir  *shm.Dir // the queue's own
}

// newNamedSide takes over dir. The caller's own handle on the directory above may be closed before
// the side is.
func newNamedSide(d *shm.Dir, name string, dir *shm.Dir) *namedSide {
	return &namedSide{d.Dup(), name, dir}
}

// owned is for who owns an object in the directory from now on: that keeps it, and no descriptor
// need do so.
func (h *namedSide) owned() *namedSide {
	h.dir.Nest(h.at, h.name)
	return h
}

func (h *namedSide) openLane(bit int) (*shm.Object, error) {
	return h.dir.Open(kind.LaneFile(bit), shm.ReadOnly)
}

func (h *namedSide) beside() *shm.Dir { return h.at }

func (h *namedSide) bell() int { return -1 }

func (h *namedSide) changes() (uint64, error) { return h.dir.Stamp() }

func (h *namedSide) newFace() (*doorbell.Face, error) {
	if err := h.dir.MakeFIFO(kind.FifoFile); err != nil {
		return nil, err
	}
	fifo, err := h.dir.OpenFIFO(kind.FifoFile, true)
	if err != nil {
		return nil, err
	}
	return doorbell.NewFace(fifo)
}

func (h *namedSide) interrupt() {}

// Those of a queue with a name belong to its user.
func (h *namedSide) attached(int) *attachment { return nil }
func (h *namedSide) retire(int)               {}
func (h *namedSide) detachAll()               {}
func (h *namedSide) forward(*doorbell.Bell)   {}

func (h *namedSide) destroy(reader *shm.Object, rows int) error {
	return collect.Destroy(h.dir, reader, rows)
}

// removeDir removes the queue's directory if it is empty. That takes no descriptor.
func (h *namedSide) removeDir() { _ = h.at.RemoveSub(h.name) }

func (h *namedSide) close() error { return errors.Join(h.dir.Close(), h.at.Close()) }

func (h *namedSide) openReader() (*shm.Object, error) {
	return h.dir.Open(kind.ReaderFile, shm.ReadOnly)
}

func (h *namedSide) claimLane(reader *shm.Object, rows []kind.RowWords,
	opt shape) (*shm.Object, int, error) {
	c := place.Claim{Dir: h.dir, Name: h.name, Queue: opt.attrs(), Reader: reader, Rows: rows}
	obj, row, err := c.Lane()
	if err == nil {
		h.owned()
	}
	return obj, row, err
}

// gone: whoever destroys a queue closes it first and unlinks then, and does not see a lane that
// came later.
func (h *namedSide) gone(reader *shm.Object) (bool, error) {
	linked, err := reader.Linked()
	return !linked, err
}

// openFace gets the reader's own eventfd, or the queue's FIFO where the kernel does not let us
// have it.
func (h *namedSide) openFace(reader *shm.Object, words *kind.QueueWords, _ uint16) int {
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

func (h *namedSide) leave(lane *shm.Object, closed func() bool) (last bool, err error) {
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

// unnamedReader is what holds the objects of a queue without a name: descriptors in its reader's
// process. Lanes come by rendezvous, in any goroutine; the reader maps one when it sees its mark.
type unnamedReader struct {
	mu       sync.Mutex
	lanes    []memfdLane // by row
	came     uint64
	meetings map[*place.Meeting]struct{}
	face     *doorbell.Face // set before the first rendezvous
	bell     *doorbell.Bell // that rings are passed on to; nil while the reader alone listens
	keeping  bool           // every death is kept in dead, not only the last one of a row
	dead     []PeerEntry
	turns    *place.Turns // of writers of other users
}

type memfdLane struct {
	obj  *shm.Object // nil until a writer brought it; the reader's lane has the same one
	busy bool        // offered in a rendezvous that is under way
	user int         // of whom, or whose writer has the lane, with CrossUser
	att  *attachment // of a writer of another user
	// former is the last one that was retired.
	former Lane
}

func newUnnamedReader(rows int) *unnamedReader {
	return &unnamedReader{lanes: make([]memfdLane, rows), meetings: map[*place.Meeting]struct{}{},
		turns: place.NewTurns(rows - 1)}
}

func (h *unnamedReader) openLane(bit int) (*shm.Object, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if obj := h.lanes[bit].obj; obj != nil {
		return obj, nil
	}
	return nil, fs.ErrNotExist
}

func (h *unnamedReader) changes() (uint64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.came, nil
}

func (h *unnamedReader) newFace() (face *doorbell.Face, err error) {
	h.face, err = doorbell.NewFace(-1)
	return h.face, err
}

// destroy: there are no names, and the memory goes with the last mapping.
func (h *unnamedReader) destroy(*shm.Object, int) error { return nil }
func (h *unnamedReader) removeDir()                     {}
func (h *unnamedReader) beside() *shm.Dir               { return nil }

// enter notes a rendezvous, so that Close can end it.
func (h *unnamedReader) enter(m *place.Meeting) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.meetings[m] = struct{}{}
}

func (h *unnamedReader) leave(m *place.Meeting) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.meetings, m)
}

// interrupt ends every rendezvous that is under way.
func (h *unnamedReader) interrupt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for m := range h.meetings {
		m.Cancel(ErrClosed)
	}
}

func (h *unnamedReader) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var err error
	for i := range h.lanes {
		if obj := h.lanes[i].obj; obj != nil {
			if e := obj.Close(); err == nil { // the reader's lane may have closed it
				err = e
			}
			h.lanes[i].obj = nil
		}
	}
	return err
}

// allot returns a row that no living writer has, with its former lane if there was one, and keeps
// it from others until release. The user is that of the peer, with CrossUser.
func (h *unnamedReader) allot(name string, opt shape, rows []kind.RowWords, user int) (bit int,
	former *shm.Object, err error) {
	limit := 0
	if opt.others() {
		limit = opt.UserLanes
	}
	for bit := 1; bit < len(h.lanes); bit++ {
		if rows[bit].Bell.Parked.Load()&kind.RowPoisoned != 0 {
			continue
		}
		obj, mine, most := h.reserve(bit, user, limit)
		if most {
			return 0, nil, &Error{Pkg: kind.Pkg, Op: place.OpMeet, Name: name, Field: "lanes of a user",
				Got: opt.UserLanes, Err: ErrLanes,
				Hint: "detach a writer of this user, or create the queue with more UserLanes"}
		}
		if !mine {
			continue
		}
		if obj == nil || !opt.others() && vacant(obj, bit, opt, &rows[bit]) {
			return bit, obj, nil
		}
		h.release(bit)
	}
	return 0, nil, place.NoLane(place.OpMeet, name, opt.attrs())
}

// reserve keeps a row from others if it is nobody's. limit is how many rows the user may have, 0
// for any number; most says that these are all taken.
func (h *unnamedReader) reserve(bit, user, limit int) (obj *shm.Object, mine, most bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.lanes[bit]
	if l.busy {
		return nil, false, false
	}
	if limit > 0 && h.ofUser(user) >= limit {
		return nil, false, true
	}
	l.busy = true
	if l.obj == nil {
		l.user = user
	}
	return l.obj, true, false
}

// ofUser counts the rows that a user has, or is about to get.
func (h *unnamedReader) ofUser(user int) (n int) {
	for i := range h.lanes {
		if l := &h.lanes[i]; (l.busy || l.obj != nil) && l.user == user {
			n++
		}
	}
	return n
}

// vacant reports whether a next writer can go on in a lane. It looks as that writer will: the last
// one may have written over what was checked when it came.
func vacant(obj *shm.Object, bit int, opt shape, row *kind.RowWords) bool {
	life, err := obj.Life()
	if err != nil || life != shm.Dead && life != shm.Released {
		return false
	}
	fresh, err := place.OpenPassed(obj.FD(), obj.Name(), shm.ReadOnly)
	if err != nil {
		return false
	}
	defer fresh.Close()
	was := obj.Header()
	high, low := was.Attrs[kind.AttrLaneQueueHigh], was.Attrs[kind.AttrLaneQueueLow]
	return opt.attrs().LaneBelongs(fresh, bit, kind.UuidOf(high, low)) == nil &&
		opt.attrs().LanePossible(fresh, bit, row) == nil
}

func (h *unnamedReader) release(bit int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lanes[bit].busy = false
}

// bring keeps a lane that a writer brought for a row.
func (h *unnamedReader) bring(bit int, obj *shm.Object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lanes[bit].obj = obj
	h.came++
}

// attach keeps the lane that a writer of another user brought.
func (h *unnamedReader) attach(bit int, a *attachment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.lanes[bit]
	l.obj, l.att = a.obj, a
	h.succeeded(bit)
	h.came++
	if h.bell != nil {
		a.listen(h.bell, bit)
	}
}

func (h *unnamedReader) attached(bit int) *attachment {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lanes[bit].att
}

func (h *unnamedReader) retire(bit int) {
	h.mu.Lock()
	a := h.lanes[bit].att
	h.noteDead(bit, a)
	if a != nil {
		was := laneFrom(bit, a.obj, a.peer, a.obj.Owner().Generation)
		was.Published = a.words.Tail.Load()
		h.lanes[bit].former = was
	}
	h.lanes[bit].obj, h.lanes[bit].att = nil, nil
	h.mu.Unlock()
	if a != nil {
		a.close()
		_ = a.obj.Close()
	}
}

func (h *unnamedReader) detachAll() {
	h.mu.Lock()
	var all []*attachment
	for i := range h.lanes {
		if a := h.lanes[i].att; a != nil {
			all = append(all, a)
			h.lanes[i].att = nil
		}
	}
	h.mu.Unlock()
	for _, a := range all { // outside: it waits
		a.close()
	}
}

func (h *unnamedReader) forward(bell *doorbell.Bell) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bell = bell
	for bit := range h.lanes {
		if a := h.lanes[bit].att; a != nil {
			a.listen(bell, bit)
		}
	}
}
