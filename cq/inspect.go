package cq

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// State is what the reader of a queue has published about it.
type State uint64

// States of a queue.
const (
	StateOpen    State = kind.StateOpen
	StateClosed  State = kind.StateClosed  // destroyed; writers may still be attached
	StateOverrun State = kind.StateOverrun // entries were lost, for ever
)

// String returns the lower-case name.
func (s State) String() string {
	switch s {
	case StateOpen:
		return "open"
	case StateClosed:
		return "closed"
	case StateOverrun:
		return "overrun"
	}
	return fmt.Sprintf("state %d", uint64(s))
}

// Snapshot is what an outsider sees of a queue. Each number was true at some moment while it was
// taken; together they may never have been.
type Snapshot struct {
	Name               string
	Path               string      // the directory of its objects
	Mode               fs.FileMode // permissions of the reader's object
	UID                uint32      // its user
	Kind               shm.Kind    // shm.KindQueue, or shm.KindEvents for an event queue
	UUID               shm.UUID
	ABIMajor, ABIMinor uint16
	Options            Options // Spin, Shared and UserContext are the reader's own: not known
	State              State
	Reader             shm.Owner
	Life               shm.Life // of the reader
	Generation         uint64   // grows with every reader
	BootID             shm.UUID // of the boot in which it was made
	CreatedMonoNs      int64    // CLOCK_MONOTONIC of that boot
	CreatedRealNs      int64    // CLOCK_REALTIME
	Bell               doorbell.View
	Seat               *DomainSeat  // nil: the queue is in no set and on no channel
	SizeBytes          uint64       // of all its objects
	Level              kind.Level   // sums over all lanes, also those that are gone
	Traffic            kind.Traffic // sums over the lanes that exist
	Overruns           int          // lanes that overran
	Lanes              []LaneSnapshot
}

// DomainSeat says which bit of which process's bell a queue has, once it was in a wait set, in a
// poll set or on a completion channel.
type DomainSeat struct {
	Bell       shm.UUID
	Bit        uint64
	Generation uint64 // of the reader
}

// LaneSnapshot is what an outsider sees of one lane. With Err set only Row is known: the object is
// damaged, of another version, or was cut.
type LaneSnapshot struct {
	Row int
	Err error
	// Own is set for lane 0, which the reader's own library writes.
	Own        bool
	Writer     shm.Owner
	Life       shm.Life // of the writer
	Generation uint64   // grows with every writer
	Level      kind.Level
	Traffic    kind.Traffic
	Overrun    bool // an entry was lost here
	Poisoned   bool // the reader gave the lane up
	Parked     bool // the next publish has to look whether the reader sleeps
	ReaderPays bool // the writer publishes without a fence
	SizeBytes  uint64
}

// Inspector looks at one queue from outside, from read-only mappings: no byte, lock or time of
// change is touched, and no party notices. It is one goroutine's at a time.
type Inspector struct {
	parent *shm.Dir
	name   string
	dir    *shm.Dir
	reader *shm.Object
	opt    shape
	lanes  map[int]*shm.Object
	closed bool
}

// Inspect prepares to look at a completion queue or event queue. The directory must stay open as
// long as the Inspector is.
// Errors are fs.ErrNotExist and those of opening shared memory: [shm.ErrVersion],
// [shm.ErrTruncated], [shm.ErrCorrupt], [shm.ErrOwner], [shm.ErrName].
func Inspect(d *shm.Dir, name string) (*Inspector, error) {
	i := &Inspector{parent: d, name: name, lanes: map[int]*shm.Object{}}
	if err := i.open(); err != nil {
		_ = i.Close()
		return nil, failed("inspect", name, err)
	}
	return i, nil
}

func (i *Inspector) open() (err error) {
	if i.dir, err = i.parent.Sub(i.name, false); err != nil {
		return err
	}
	if i.reader, err = i.dir.Open(kind.ReaderFile, shm.Inspect); err != nil {
		return err
	}
	h := i.reader.Header()
	if h.Kind != shm.KindEvents { // else it is a queue, or nothing to look at
		if err := h.CheckKind(shm.KindQueue); err != nil {
			return err
		}
	}
	i.opt, err = stored("inspect", i.name, h)
	return err
}

// Close unmaps everything. It may be called again.
func (i *Inspector) Close() error {
	i.closed = true
	return i.drop()
}

func (i *Inspector) drop() error {
	var err error
	for row, obj := range i.lanes {
		err = errors.Join(err, obj.Close())
		delete(i.lanes, row)
	}
	if i.reader != nil {
		err = errors.Join(err, i.reader.Close())
		i.reader = nil
	}
	if i.dir != nil {
		err = errors.Join(err, i.dir.Close())
		i.dir = nil
	}
	return err
}

// Snapshot looks at the queue. A queue that was destroyed is fs.ErrNotExist, one that another took
// the place of is that other one; a reader object that is damaged or was cut is one of the errors
// of [Inspect], a lane object that is has them in [LaneSnapshot.Err]. After Close it is ErrClosed.
func (i *Inspector) Snapshot() (Snapshot, error) {
	s, err := i.snapshot()
	if err != nil {
		return Snapshot{}, fmt.Errorf("cq: inspect %q: %w", i.name, err)
	}
	return s, nil
}

func (i *Inspector) snapshot() (s Snapshot, err error) {
	if err := i.refresh(); err != nil {
		return s, err
	}
	h := i.reader.Header()
	s = Snapshot{Name: i.name, Path: i.dir.Path(), Kind: h.Kind, UUID: h.UUID, ABIMajor: h.ABIMajor,
		ABIMinor: h.ABIMinor, Options: i.opt.Options, BootID: h.BootID, CreatedMonoNs: h.CreatedMonoNs,
		CreatedRealNs: h.CreatedRealNs, SizeBytes: h.TotalBytes}
	if s.Life, err = i.reader.Life(); err != nil {
		return s, err
	}
	if s.Mode, s.UID, err = i.reader.File(); err != nil {
		return s, err
	}
	found, err := i.findLanes()
	if err != nil {
		return s, err
	}
	// Whoever owns the file may cut it at any moment.
	fault := shm.Guard(func() {
		s.Reader, s.Generation = i.reader.Owner(), i.reader.Generation()
		err = i.readQueue(&s, found)
	})
	return s, errors.Join(fault, err)
}

// refresh goes from a queue that was destroyed to the one that has its name now.
func (i *Inspector) refresh() error {
	if i.closed {
		return ErrClosed
	}
	if i.reader != nil {
		if linked, err := i.reader.Linked(); err != nil || linked {
			return err
		}
	}
	if err := i.drop(); err != nil {
		return err
	}
	return i.open()
}

// foundLane is a lane file, or why it cannot be looked at.
type foundLane struct {
	obj *shm.Object
	err error
}

// findLanes maps the lanes that there are now and lets go of those that are not any more.
func (i *Inspector) findLanes() (map[int]foundLane, error) {
	names, err := i.dir.List()
	if err != nil {
		return nil, err
	}
	found := map[int]foundLane{}
	for _, n := range names {
		row, ok := kind.LaneRow(n.Name)
		if !ok || row >= i.opt.rows() {
			continue
		}
		obj, err := i.findLane(row, n.Name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, kind.ErrOtherQueue) {
			continue
		}
		found[row] = foundLane{obj: obj, err: err}
	}
	for row, obj := range i.lanes {
		if found[row].obj != obj {
			_ = obj.Close()
			delete(i.lanes, row)
		}
	}
	return found, nil
}

func (i *Inspector) findLane(row int, file string) (*shm.Object, error) {
	if obj := i.lanes[row]; obj != nil {
		if linked, err := obj.Linked(); err == nil && linked {
			return obj, nil
		}
		_ = obj.Close()
		delete(i.lanes, row)
	}
	obj, err := i.dir.Open(file, shm.Inspect)
	if err != nil {
		return nil, err
	}
	if err := i.opt.attrs().LaneBelongs(obj, row, i.reader.Header().UUID); err != nil {
		_ = obj.Close()
		return nil, err
	}
	i.lanes[row] = obj
	return obj, nil
}

// readQueue reads the words of the reader object and of every lane.
func (i *Inspector) readQueue(s *Snapshot, found map[int]foundLane) error {
	mem, err := kind.SectionOf(i.reader, kind.SectQueue, 0, kind.QueueBytes)
	if err != nil {
		return err
	}
	words := kind.Overlay[kind.QueueWords](mem)
	if mem, err = kind.SectionOf(i.reader, kind.SectRows, 0, i.opt.rows()*kind.RowBytes); err != nil {
		return err
	}
	rows := kind.Overlays[kind.RowWords](mem)
	if mem, _, err = i.reader.Section(kind.SectHints, 0); err != nil {
		return err
	}
	hints, err := doorbell.MapHints(mem, i.opt.rows())
	if err != nil {
		return err
	}
	if s.State = State(words.State.Load()); s.State == kind.StateRemoving {
		s.State = StateClosed
	}
	s.Bell = doorbell.Inspect(words.Arm.Word.Load(), hints)
	if g := words.Bell.Generation.Load(); g != 0 {
		s.Seat = &DomainSeat{Bell: kind.UuidOf(words.Bell.High.Load(), words.Bell.Low.Load()),
			Bit: words.Bell.Bit.Load(), Generation: g}
	}
	for row := range i.opt.rows() {
		f, exists := found[row]
		if row == 0 {
			f, exists = foundLane{obj: i.reader}, true
		}
		if !exists {
			// Its lane was removed: all that was read is known, and nothing waits.
			head := rows[row].Head.Load()
			s.Level.Add(kind.Level{Head: head, Peeked: head, Tail: head,
				HighWater: rows[row].HighWater.Load(), Read: head})
			continue
		}
		s.add(i.lane(row, f, &rows[row]))
	}
	return nil
}

// add counts a lane in.
func (s *Snapshot) add(l LaneSnapshot) {
	s.Lanes = append(s.Lanes, l)
	if l.Err != nil {
		return
	}
	s.Level.Add(l.Level)
	s.Traffic.Add(l.Traffic)
	if l.Overrun {
		s.Overruns++
	}
	if !l.Own { // lane 0 lies in the reader object
		s.SizeBytes += l.SizeBytes
	}
}
