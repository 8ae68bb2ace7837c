package collect

import (
	"errors"
	"io/fs"

	"github.com/shmring/shmring/internal/counterbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// terms are those on which an object outlives its processes.
type terms struct {
	foreign    bool       // it is not known
	over       bool       // its owner destroyed it, or it means nothing without its process
	persistent bool       // made to wait for a successor
	shared     bool       // it has no owner: its maker leaves it to all who have it open
	unread     int        // lanes of an outbox that somebody who lives has to examine
	queue      kind.Queue // of the reader's object of a queue
}

func (t *target) terms(obj *shm.Object) (m terms, err error) {
	const op = "assess"
	h := obj.Header()
	lifetime := uint64(0)
	switch {
	case t.isQueue():
		m.queue, err = kind.StoredQueue(op, "", h)
		lifetime = m.queue.Lifetime
	case h.Kind == shm.KindBell, h.Kind == shm.KindEndpoint, h.Kind == shm.KindCapture,
		h.Kind == shm.KindFabric, h.Kind == shm.KindGroup:
		m.over = true
	case h.Kind == shm.KindOutbox:
		m.over = true
		m.unread, err = t.unexamined(obj)
	case h.Kind == shm.KindCounter:
		var c kind.Counter
		c, err = kind.StoredCounter(op, obj.Name(), h)
		lifetime, m.shared = c.Lifetime, true
	case h.Kind == shm.KindAddresses:
		var a kind.Addresses
		a, err = kind.StoredAddresses(op, obj.Name(), h)
		lifetime = a.Lifetime
	case h.Kind == shm.KindRegion, h.Kind == shm.KindUMEM:
		lifetime = kind.Persistent
	default:
		m.foreign = true
	}
	m.persistent = lifetime == kind.Persistent
	if err == nil && (t.isQueue() || h.Kind == shm.KindAddresses) {
		m.over, err = kind.Closed(obj)
	}
	return m, err
}

// fate is that of what nobody has.
func (m *terms) fate(life shm.Life, unread uint64, o Options) Fate {
	left := life == shm.Released && !m.shared
	waits := m.persistent || left
	switch {
	case m.foreign:
		return Foreign
	case m.unread > 0:
		return Unread
	case m.over:
		return Garbage
	case waits && unread > 0:
		return Unread
	case o.Waiting || !waits:
		return Garbage
	case left:
		return Left
	}
	return Persistent
}

// assess looks at the target from outside.
func (t *target) assess() (r Remains, err error) {
	obj, err := t.objectDir().Open(t.main, shm.Inspect)
	gone := t.isQueue() && errors.Is(err, fs.ErrNotExist)
	n, cut := t.truncated(t.main, err)
	switch {
	case (gone || cut) && t.o.Object != (shm.UUID{}): // whose it was is not known
		return r, fs.ErrNotExist
	case t.isQueue() && (gone || cut):
		return t.orphans(cut)
	case cut:
		return Remains{Fate: Garbage, Truncated: true, SizeBytes: n}, nil
	}
	if errors.Is(err, shm.ErrKind) || errors.Is(err, shm.ErrName) { // as it is of sockets
		return t.socket(err)
	}
	if err != nil {
		return r, err
	}
	defer obj.Close()
	r.Kind, r.SizeBytes = obj.Header().Kind, obj.Header().TotalBytes
	if err := t.o.admits(obj); err != nil {
		return r, err
	}
	if isShared(r.Kind) && !t.isQueue() {
		if err := r.seatUser(obj); r.Fate != "" || err != nil {
			return r, err
		}
	}
	life, err := obj.Life()
	if err != nil {
		return r, err
	}
	if err := shm.Guard(func() { r.Owner = present(obj.Owner()) }); err != nil {
		return r, err
	}
	lives := r.livesOrMay(life)
	if lives && !t.isQueue() {
		return r, nil
	}
	var m terms
	if fault := shm.Guard(func() { m, err = t.terms(obj) }); fault != nil || err != nil {
		return r, errors.Join(fault, err)
	}
	if t.isQueue() {
		lives, err = t.assessLanes(&r, obj, m.queue, lives)
	}
	if lives { // whatever its lanes are like
		return r, nil
	}
	if err != nil {
		return r, err
	}
	r.Owner = shm.Owner{}
	r.Fate = m.fate(life, r.Unread, t.o)
	return r, nil
}

// livesOrMay notes an owner that is not proved gone.
func (r *Remains) livesOrMay(life shm.Life) bool {
	switch life {
	case shm.Alive:
		r.Fate = Living
	case shm.LockLost:
		r.Fate = LockLost
	}
	return r.Fate != ""
}

// truncated reports whether an error of opening an object is one of a rest that nobody has any
// more, and how long that is. An empty file may be anybody's, unless it is asked for by its name.
func (t *target) truncated(name string, err error) (bytes uint64, cut bool) {
	if !errors.Is(err, shm.ErrTruncated) {
		return 0, false
	}
	n, err := Truncated(t.objectDir(), name)
	return n, err == nil && (n > 0 || t.isQueue() || t.o.Waiting || t.o.forNew)
}

// socket assesses what could not be opened as an object.
func (t *target) socket(err error) (r Remains, _ error) {
	if t.isQueue() || t.o.forNew || len(t.o.Kinds) > 0 || t.o.Object != (shm.UUID{}) {
		return r, err
	}
	bound, unlike := Bound(t.at, t.name)
	if errors.Is(unlike, shm.ErrKind) {
		return r, err
	}
	if r.Socket, r.Fate = true, Garbage; bound {
		r.Fate = Living
	}
	return r, unlike
}

// openLanes opens every lane of a queue. Those that it could open come with an error too.
func (t *target) openLanes(acc shm.Access) (lanes []*shm.Object, err error) {
	names, err := t.dir.List()
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if !kind.IsLane(n.Name()) {
			continue
		}
		l, err := t.dir.Open(n.Name(), acc)
		if errors.Is(err, fs.ErrNotExist) { // its writer removed it meanwhile
			continue
		}
		if _, cut := t.truncated(n.Name(), err); cut {
			continue // nobody has it any more, nor what was in it
		}
		if err != nil {
			return lanes, err
		}
		lanes = append(lanes, l)
	}
	return lanes, nil
}

func closeAll(objects []*shm.Object) {
	for _, o := range objects {
		_ = o.Close()
	}
}

// assessLanes looks at the lanes of a queue, whose reader may live, and counts what is unread.
func (t *target) assessLanes(r *Remains, reader *shm.Object, q kind.Queue, lives bool) (bool,
	error) {
	lanes, err := t.openLanes(shm.Inspect)
	defer closeAll(lanes)
	if err == nil {
		var alive bool
		alive, err = r.lanes(lanes)
		lives = lives || alive
	}
	if err == nil {
		r.Unread, err = unread(lanes, reader, q)
	}
	r.Counted = err == nil
	return lives, err
}

// lanes notes a living writer, unless one who lives is known, and how much memory the lanes take.
func (r *Remains) lanes(lanes []*shm.Object) (alive bool, err error) {
	for _, l := range lanes {
		r.SizeBytes += l.Header().TotalBytes
	}
	for _, l := range lanes {
		if r.Fate != "" {
			break
		}
		life, err := l.Life()
		if err != nil {
			return false, err
		}
		if r.livesOrMay(life) {
			return true, shm.Guard(func() { r.Owner = present(l.Owner()) })
		}
	}
	return false, nil
}

// unread adds up the entries of all lanes that the reader did not give back. A lane of an earlier
// queue of the name has none that anybody will read.
func unread(lanes []*shm.Object, reader *shm.Object, q kind.Queue) (n uint64, err error) {
	rows, err := kind.RowsOf(reader, q.Rows)
	if err != nil {
		return 0, err
	}
	all := append([]*shm.Object{reader}, lanes...)
	for i, l := range all {
		row := 0
		if i > 0 {
			row = int(min(l.Header().Attrs[kind.AttrLaneRow], kind.MaxLanes+1))
			if row == 0 || row >= len(rows) {
				return n, kind.Refuse("assess", l.Name(), "row", row, len(rows), kind.ErrCorrupt)
			}
			err = q.LaneBelongs(l, row, reader.Header().UUID)
			if errors.Is(err, kind.ErrOtherQueue) {
				continue
			}
			if err != nil {
				return n, err
			}
		}
		words, err := kind.WordsOf[kind.LaneWords](l, kind.SectLane, uint32(row))
		if err != nil {
			return n, err
		}
		fault := shm.Guard(func() {
			var at kind.Level
			at, err = kind.ReadLevel(&rows[row], words, uint64(q.Capacity), l.Name())
			n += at.Depth()
		})
		if err = errors.Join(fault, err); err != nil {
			return n, err
		}
	}
	return n, nil
}

// orphans looks at a directory without a reader's object: it is empty, or has lanes whose writers
// did not notice that the queue was destroyed. If that was truncated, it is there all the same.
func (t *target) orphans(cut bool) (r Remains, err error) {
	r.Truncated = cut
	names, err := t.dir.List()
	if err != nil {
		return r, err
	}
	lanes, err := t.openLanes(shm.Inspect)
	defer closeAll(lanes)
	if err != nil {
		return r, err
	}
	if alive, err := r.lanes(lanes); alive || err != nil {
		return r, err
	}
	r.Fate = Garbage
	for _, n := range names {
		ours := cut && (n.Name() == kind.ReaderFile || n.Name() == kind.FifoFile)
		if !ours && !kind.IsLane(n.Name()) {
			r.Fate = Foreign
		}
	}
	return r, nil
}

// isShared tells whether objects of a kind belong to nobody: who uses one has a seat there.
func isShared(k shm.Kind) bool { return k == shm.KindCounter || k == shm.KindGroup }

// seatUser looks for a seat of a process that may live, and notes whose it is: the owner's record
// is that of who made the object, long ago perhaps. Whoever makes or removes it has all seats for a
// moment.
func (r *Remains) seatUser(obj *shm.Object) error {
	seats, n, err := seatsOf(obj)
	if err != nil {
		return err
	}
	for i := range n {
		seat := seats.At(i)
		life, err := seat.Life()
		if err != nil {
			return err
		}
		if !r.livesOrMay(life) {
			continue
		}
		fault := shm.Guard(func() { r.Owner = present(seat.Owner()) })
		if fault != nil || r.Owner.PID != 0 {
			return fault
		}
	}
	if r.Fate != "" {
		return shm.Guard(func() { r.Owner = present(obj.Owner()) })
	}
	stands, err := seats.Standing()
	if err == nil && stands {
		r.Fate = Living
		err = shm.Guard(func() { r.Owner = present(obj.Owner()) })
	}
	return err
}

func seatsOf(obj *shm.Object) (seats shm.Seats, n int, err error) {
	if obj.Header().Kind == shm.KindGroup {
		return kind.GroupSeats(obj)
	}
	words, err := kind.WordsOf[kind.CounterWords](obj, kind.SectCounter, 0)
	if err != nil {
		return seats, 0, err
	}
	return obj.Seats(words.Seats[:]), counterbell.Seats, nil
}

// present returns what a record says if that is somebody who may be there now.
func present(o shm.Owner) shm.Owner {
	if alive, known := shm.ProcessAlive(o); o.State != shm.StateOwned || known && !alive {
		return shm.Owner{}
	}
	return o
}
