package place

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// Lanes are the lanes of a queue, as the reader's process has them: found in the queue's directory,
// or brought by writers over sockets. Then that is all there is of the queue: descriptors in its
// reader's process. They come in any goroutine; the reader maps one when it sees its mark. Methods
// may be called from anywhere while the queue is open.
type Lanes struct {
	Host
	Name   string
	Queue  kind.Queue
	Reader *shm.Object
	Rows   []kind.RowWords // set before a lane can come, as the descriptor is
	// UserLanes is how many rows a user may have, 0 for any number.
	UserLanes int

	names *Named // nil of a queue without a name
	face  *wake.Face

	mu       sync.Mutex
	lanes    []brought // by row
	came     uint64
	meetings map[*Meeting]struct{}
	bell     *wake.Bell // that rings are passed on to; nil while the reader alone listens
	keeping  bool       // every death is kept in dead, not only the last one of a row
	dead     []Death
	turns    *Turns // of writers of other users
}

// Host is what a rendezvous needs of the queue's reader. It calls from any goroutine.
type Host interface {
	Enter() bool // keeps the queue open until Leave, or says that it is closed
	Leave()
	Enroll() error // gives the queue a bit in [ProcessBell]
	Mark(row int)  // has the reader look at a lane, and whoever looks for deaths
}

// brought is a row's lane.
type brought struct {
	obj  *shm.Object // nil until it is opened, or a writer brought it; the reader's lane has it too
	busy bool        // offered in a rendezvous that is under way
	user int         // of whom, or whose writer has the lane, with CrossUser
	att  *Attachment // of a writer of another user
	// former is the last one that was retired.
	former Lane
}

// Lane says who a lane's writer is, as cq.Lane does, which has the same fields.
type Lane struct {
	Row        int
	PID        int
	UID        int
	Object     shm.UUID
	Generation uint64
	Published  uint64
}

// LaneFrom describes the writer of a generation: a peer, if it is one of another user.
func LaneFrom(row int, obj *shm.Object, peer *Peer, generation uint64) Lane {
	l := Lane{Row: row, UID: os.Geteuid(), Object: obj.Header().UUID, Generation: generation}
	if peer != nil {
		l.PID, l.UID = peer.PID, peer.UID
		return l
	}
	if o := obj.Owner(); o.Generation == generation {
		l.PID = o.PID
		return l
	}
	for _, d := range obj.Deaths() {
		if d.Generation == generation {
			l.PID = d.PID
		}
	}
	return l
}

// Death is that of a writer of another user, and which entries of its lane are its own.
type Death struct {
	Lane
	First, End uint64
}

// NewLanes are those of a queue without a name if names is nil.
func NewLanes(host Host, names *Named, name string, q kind.Queue, reader *shm.Object) *Lanes {
	return &Lanes{Host: host, names: names, Name: name, Queue: q, Reader: reader,
		lanes: make([]brought, q.Rows), meetings: map[*Meeting]struct{}{}, turns: NewTurns(q.Rows - 1)}
}

// Named reports whether the queue has a name.
func (h *Lanes) Named() bool { return h.names != nil }

// Open returns the object of a row's writer for reading, which stays Lanes' own, and what is held
// of that writer if it is of another user. It is fs.ErrNotExist if there is none, and
// kind.ErrOtherQueue if what stands there is not this queue's.
func (h *Lanes) Open(row int) (*shm.Object, *Attachment, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open(row)
}

func (h *Lanes) open(row int) (*shm.Object, *Attachment, error) {
	l := &h.lanes[row]
	if l.obj != nil {
		return l.obj, l.att, nil
	}
	if h.names == nil {
		return nil, nil, fs.ErrNotExist
	}
	obj, err := h.names.Dir.Open(kind.LaneFile(row), shm.ReadOnly)
	if err != nil {
		return nil, nil, err
	}
	if err = h.Queue.LaneBelongs(obj, row, h.Reader.Header().UUID); err != nil {
		_ = obj.Close()
		return nil, nil, err
	}
	l.obj = obj
	return obj, nil, nil
}

// Look lends what Open returns, and says which lane of another user was the row's before. Nothing
// goes meanwhile. Without a name a row may have no object.
func (h *Lanes) Look(row int, do func(obj *shm.Object, peer *Peer, former Lane) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	obj, a, err := h.open(row)
	switch {
	case err != nil && h.names != nil:
		if errors.Is(err, kind.ErrOtherQueue) {
			err = fs.ErrNotExist // it is only in the way
		}
		return err
	case a != nil:
		return do(obj, a.Peer, h.lanes[row].former)
	}
	return do(obj, nil, h.lanes[row].former)
}

// Changes returns a number that changes when a lane comes.
func (h *Lanes) Changes() (uint64, error) {
	if h.names != nil {
		return h.names.Dir.Stamp()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.came, nil
}

// NewFace makes the reader's descriptors, so that writers can get at one of them.
func (h *Lanes) NewFace() (face *wake.Face, err error) {
	fifo := -1
	if h.names != nil {
		if fifo, err = openFIFO(h.names.Dir, true); err != nil {
			return nil, err
		}
	}
	h.face, err = wake.NewFace(fifo)
	return h.face, err
}

// Beside returns the directory where the bell of the reader's process is found, or nil.
func (h *Lanes) Beside() *shm.Dir {
	if h.names == nil {
		return nil
	}
	return h.names.at
}

// Destroy removes the names of a queue whose writers have been told. The reader's object is still
// ours. Without a name the memory goes with the last mapping.
func (h *Lanes) Destroy() error {
	if h.names == nil {
		return nil
	}
	return collect.Destroy(h.names.Dir, h.Reader, h.Queue.Rows)
}

// RemoveDir removes what is left of a queue that was destroyed, unless others still use it. It
// comes before Close.
func (h *Lanes) RemoveDir() {
	if h.names != nil {
		h.names.RemoveDir()
	}
}

// Interrupt ends every rendezvous that is under way.
func (h *Lanes) Interrupt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for m := range h.meetings {
		m.Cancel(kind.ErrClosed)
	}
}

// Retire forgets a row's lane, of another user, and closes it.
func (h *Lanes) Retire(row int) {
	h.mu.Lock()
	l := &h.lanes[row]
	a := l.att
	h.noteDead(row, a)
	if a != nil {
		l.former = LaneFrom(row, a.Obj, a.Peer, a.Obj.Owner().Generation)
		l.former.Published = a.words.Tail.Load()
	}
	l.obj, l.att = nil, nil
	h.mu.Unlock()
	if a != nil {
		a.close()
		_ = a.Obj.Close()
	}
}

// DetachAll stops whatever of other users' lanes looks at the queue from other goroutines, before
// its memory goes.
func (h *Lanes) DetachAll() {
	h.mu.Lock()
	var all []*Attachment
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

// Close unmaps all lanes, when nobody looks at them any more.
func (h *Lanes) Close() (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.lanes {
		if obj := h.lanes[i].obj; obj != nil {
			if e := obj.Close(); err == nil {
				err = e
			}
			h.lanes[i].obj = nil
		}
	}
	if h.names != nil {
		err = errors.Join(err, h.names.Close())
	}
	return err
}

// Attachment is what the reader's process holds of one writer of another user, from the rendezvous
// on until its lane is retired.
type Attachment struct {
	Obj     *shm.Object
	Row     int
	Peer    *Peer
	Pipe    int // reading end of the one that raises the queue's descriptor, or -1
	words   *kind.LaneWords
	silence func() // ends passing its rings on; nil while nobody does; under Lanes.mu
	noted   bool   // its death was noted; under Lanes.mu
	muted   bool   // it was given up: nobody listens any more; under Lanes.mu
}

// Ended reports that the writer does not post any more: it has left the lane, or is proved dead.
// One that says so and goes on writes to memory that nobody looks at.
func (a *Attachment) Ended() bool {
	return a.Peer.Gone() || a.Obj.Owner().State == shm.StateReleased
}

// close gives everything back but the object. It waits for the peer's notices to be handled.
func (a *Attachment) close() {
	if a.silence != nil {
		a.silence()
	}
	a.Peer.Close()
	if a.Pipe >= 0 {
		shm.CloseFDs([]int{a.Pipe})
		a.Pipe = -1
	}
}

// Forward has rings of other users' lanes passed on to sets, channels, and goroutines that share
// the queue, from now on.
func (h *Lanes) Forward(bell *wake.Bell) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bell = bell
	for i := range h.lanes {
		h.listen(h.lanes[i].att)
	}
}

// listen passes the lane's rings on to those who cannot sleep on its word. The lock is held.
func (h *Lanes) listen(a *Attachment) {
	if h.bell != nil && a != nil && a.silence == nil && !a.muted {
		a.silence = h.bell.Forward(a.Row, &a.words.Rung, a.words.Tail.Load)
	}
}

// Forwards reports whether the rings of a row's writer of another user are passed on.
func (h *Lanes) Forwards(row int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lanes[row].att.silence != nil
}

// Mute ends that for a writer that was given up, for good: its words say nothing any more, so
// nothing in them could tell false alarms from others. Its end is still noticed by its peer's
// connection.
func (h *Lanes) Mute(a *Attachment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a.muted = true
	if a.silence != nil {
		a.silence()
		a.silence = nil
	}
}

// KeepDeaths has every death of other users' writers kept for TakeDead. When it is ended, what
// comes after is kept only until its row has another writer: that is bounded by the number of rows.
func (h *Lanes) KeepDeaths(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keeping = on
}

// TakeDead returns the writers of other users that have died since the last call. Those whose lanes
// are retired already were noted by then.
func (h *Lanes) TakeDead() []Death {
	h.mu.Lock()
	defer h.mu.Unlock()
	for row := range h.lanes {
		h.noteDead(row, h.lanes[row].att)
	}
	dead := h.dead
	h.dead = nil
	return dead
}

// Untold takes back what nobody was told of: it is news to whoever asks next. Between this one and
// that one every death is kept.
func (h *Lanes) Untold(dead []Death) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dead = append(dead, h.dead...)
}

// noteDead keeps the death of a row's writer, if it is proved, once. The lock is held.
func (h *Lanes) noteDead(row int, a *Attachment) {
	if a == nil || a.noted || !a.Peer.Gone() {
		return
	}
	a.noted = true // what it says of itself now is its last word
	if owner := a.Obj.Owner(); owner.State != shm.StateReleased {
		d := Death{Lane: LaneFrom(row, a.Obj, a.Peer, owner.Generation)}
		d.First, d.End = kind.LaneShare(a.Obj, row, owner.Generation)
		h.dead = append(h.dead, d)
	}
}

// bring keeps a lane that a writer brought for a row.
func (h *Lanes) bring(row int, obj *shm.Object, a *Attachment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lanes[row].obj, h.lanes[row].att = obj, a
	h.came++
	if a != nil && !h.keeping { // the row has another writer
		h.dead = slices.DeleteFunc(h.dead, func(d Death) bool { return d.Row == row })
	}
	h.listen(a)
}
