package cq

import (
	"io/fs"
	"sync"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// memfdHome is what holds the objects of a queue without a name: descriptors in its reader's
// process. Lanes come by rendezvous, in any goroutine; the reader maps one when it sees its mark.
type memfdHome struct {
	mu       sync.Mutex
	lanes    []memfdLane // by row
	came     uint64
	meetings map[*meeting]struct{}
	face     *doorbell.Face // set before the first rendezvous
	bell     *doorbell.Bell // that rings are passed on to; nil while the reader alone listens
	keeping  bool           // every death is kept in dead, not only the last one of a row
	dead     []PeerEntry
	turns    turns // of writers of other users
}

type memfdLane struct {
	obj  *shm.Object // nil until a writer brought it; the reader's lane has the same one
	busy bool        // offered in a rendezvous that is under way
	user int         // of whom, or whose writer has the lane, with CrossUser
	att  *attachment // of a writer of another user
	// former is the last one that was retired.
	former formerLane
}

func newMemfdHome(rows int) *memfdHome {
	return &memfdHome{lanes: make([]memfdLane, rows), meetings: map[*meeting]struct{}{},
		turns: newTurns(rows - 1)}
}

func (h *memfdHome) openLane(bit int) (*shm.Object, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if obj := h.lanes[bit].obj; obj != nil {
		return obj, nil
	}
	return nil, fs.ErrNotExist
}

func (h *memfdHome) changes() (uint64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.came, nil
}

func (h *memfdHome) newFace() (face *doorbell.Face, err error) {
	h.face, err = doorbell.NewFace(-1)
	return h.face, err
}

// destroy: there are no names, and the memory goes with the last mapping.
func (h *memfdHome) destroy(*shm.Object, int) error { return nil }
func (h *memfdHome) vacate()                        {}
func (h *memfdHome) beside() *shm.Dir               { return nil }

// enter notes a rendezvous, so that Close can end it.
func (h *memfdHome) enter(m *meeting) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.meetings[m] = struct{}{}
}

func (h *memfdHome) leave(m *meeting) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.meetings, m)
}

// interrupt ends every rendezvous that is under way.
func (h *memfdHome) interrupt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for m := range h.meetings {
		m.Cancel(ErrClosed)
	}
}

func (h *memfdHome) close() error {
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
func (h *memfdHome) allot(name string, opt shape, rows []kind.RowWords, user int) (bit int,
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
			return 0, nil, &Error{Pkg: kind.Pkg, Op: opMeet, Name: name, Field: "lanes of a user",
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
	return 0, nil, place.NoLane(opMeet, name, opt.attrs())
}

// reserve keeps a row from others if it is nobody's. limit is how many rows the user may have, 0
// for any number; most says that these are all taken.
func (h *memfdHome) reserve(bit, user, limit int) (obj *shm.Object, mine, most bool) {
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
func (h *memfdHome) ofUser(user int) (n int) {
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
	fresh, err := openPassed(obj.FD(), obj.Name(), shm.ReadOnly)
	if err != nil {
		return false
	}
	defer fresh.Close()
	was := obj.Header()
	high, low := was.Attrs[kind.AttrLaneQueueHigh], was.Attrs[kind.AttrLaneQueueLow]
	return opt.attrs().LaneBelongs(fresh, bit, kind.UuidOf(high, low)) == nil &&
		opt.attrs().LanePossible(fresh, bit, row) == nil
}

func (h *memfdHome) release(bit int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lanes[bit].busy = false
}

// bring keeps a lane that a writer brought for a row.
func (h *memfdHome) bring(bit int, obj *shm.Object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lanes[bit].obj = obj
	h.came++
}

// attach keeps the lane that a writer of another user brought.
func (h *memfdHome) attach(bit int, a *attachment) {
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

func (h *memfdHome) attached(bit int) *attachment {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lanes[bit].att
}

func (h *memfdHome) retire(bit int) {
	h.mu.Lock()
	a := h.lanes[bit].att
	h.noteDead(bit, a)
	if a != nil {
		h.lanes[bit].former = formerLane{a.obj.Header().UUID, a.words.Tail.Load()}
	}
	h.lanes[bit].obj, h.lanes[bit].att = nil, nil
	h.mu.Unlock()
	if a != nil {
		a.close()
		_ = a.obj.Close()
	}
}

func (h *memfdHome) partAll() {
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

func (h *memfdHome) relay(bell *doorbell.Bell) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bell = bell
	for bit := range h.lanes {
		if a := h.lanes[bit].att; a != nil {
			a.listen(bell, bit)
		}
	}
}
