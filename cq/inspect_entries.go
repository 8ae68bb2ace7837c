package cq

import (
	"errors"
	"fmt"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// EntryState says how far an entry has come.
type EntryState uint32

// The states of an entry in its lane.
const (
	EntryWaiting  EntryState = iota // published, and not handed to the application
	EntryPeeked                     // handed out by Peek, and not given back
	EntryReleased                   // read: it is only still there
)

// String returns the lower-case name.
func (s EntryState) String() string {
	switch s {
	case EntryWaiting:
		return "waiting"
	case EntryPeeked:
		return "peeked"
	case EntryReleased:
		return "released"
	}
	return "unknown"
}

// EntrySnapshot is an entry as an outsider found it in its lane.
type EntrySnapshot struct {
	Index uint64 // counts the entries of the lane
	State EntryState
	Entry Entry
	Error *ErrorEntry // detail of a failed operation, nil for a completion
	Event *Event      // what the entry of an event queue means, nil in a completion queue

	// EventError is what an error entry of an event queue means.
	EventError *EventError
}

// LaneEntries is what an outsider found in one lane, oldest first. With Err set only Row is known.
type LaneEntries struct {
	Row     int
	Own     bool
	Err     error
	Writer  shm.Owner
	First   uint64 // least index that can still be there
	Tail    uint64 // next index that will be published
	Entries []EntrySnapshot
}

// Entries returns the last n entries of every lane, those included that were read and whose place
// was not used again, but none whose index is below since of its row; a nil since leaves none out.
// Nothing is consumed and no party notices. An entry that is waiting or peeked is whole. One that
// was read may just be overwritten: it is left out as soon as that shows, and can only be mixed
// with its successor while a writer is between filling that and publishing it. Errors are those of
// [Inspector.Snapshot].
func (i *Inspector) Entries(n int, since map[int]uint64) ([]LaneEntries, error) {
	lanes, err := i.entries(n, since)
	if err != nil {
		return nil, fmt.Errorf("cq: inspect %q: %w", i.name, err)
	}
	return lanes, nil
}

func (i *Inspector) entries(n int, since map[int]uint64) (out []LaneEntries, err error) {
	if err := i.refresh(); err != nil {
		return nil, err
	}
	found, err := i.findLanes()
	if err != nil {
		return nil, err
	}
	mem, err := kind.SectionOf(i.reader, kind.SectRows, 0, i.opt.rows()*kind.RowBytes)
	if err != nil {
		return nil, err
	}
	rows := kind.Overlays[kind.RowWords](mem)
	found[0] = foundLane{obj: i.reader}
	for row := range i.opt.rows() {
		f, ok := found[row]
		if !ok {
			continue
		}
		l := LaneEntries{Row: row, Own: row == 0}
		err := f.err
		if err == nil {
			fault := shm.Guard(func() { err = i.readEntries(&l, f.obj, &rows[row], n, since[row]) })
			err = errors.Join(fault, err)
		}
		if err != nil {
			l = LaneEntries{Row: row, Own: row == 0, Err: err}
		}
		out = append(out, l)
	}
	return out, nil
}

func (i *Inspector) readEntries(l *LaneEntries, obj *shm.Object, r *kind.RowWords, n int,
	since uint64) error {
	m, err := kind.LaneOf[Entry](obj, l.Row, i.opt.attrs())
	if err != nil {
		return err
	}
	capacity := uint64(i.opt.Size)
	level, err := kind.ReadLevel(r, m.Words, capacity, obj.Name())
	if err != nil {
		return err
	}
	l.Writer, l.Tail = obj.Owner(), level.Tail
	l.First = level.Tail - min(level.Tail, capacity)
	from := level.Tail - min(level.Tail, capacity, uint64(max(n, 0)))
	for at := max(from, since); at < level.Tail; at++ {
		s := EntrySnapshot{Index: at}
		if !s.copy(&m, at, i.opt) {
			continue
		}
		// What the reader had not given back when the copy was complete cannot have changed.
		if s.State = EntryWaiting; at < r.Head.Load() {
			s.State = EntryReleased
		} else if at < level.Peeked {
			s.State = EntryPeeked
		}
		l.Entries = append(l.Entries, s)
	}
	return nil
}

// copy takes the entry out of its slot, unless another one is there by now, or was never there: a
// lane that was removed goes on in a new object at its old index.
func (s *EntrySnapshot) copy(m *kind.Lane[Entry], at uint64, o shape) bool {
	capacity := uint64(o.Size)
	k := at & (capacity - 1)
	s.Entry = kind.LoadLine(&m.Slots[k])
	detail := kind.LoadLine(m.Detail.Record(at))
	var data []byte
	if o.events {
		data = append(data, m.Detail.Data(at)...)
	}
	meta := s.Entry.Meta
	if meta.Seq() != uint32(at) || loadMeta(&m.Slots[k]) != meta || m.Words.Tail.Load() > at+capacity {
		return false
	}
	switch meta & kindMask {
	case kindEntry:
		if o.events {
			s.Event = &Event{Payload: make([]byte, 0, len(data))}
			_, fits := s.Event.decode(&s.Entry, data)
			return fits
		}
		return true
	case kindError:
		if o.events {
			s.EventError = &EventError{ErrData: make([]byte, 0, len(data))}
			s.EventError.decode(&s.Entry, &detail, data)
			return true
		}
		s.Error = &ErrorEntry{ErrData: make([]byte, 0, ErrDataMaxBytes)}
		s.Error.fill(&s.Entry, &detail)
		return true
	}
	return false
}

// UUID returns which queue of that name was looked at last: one that takes its place has another.
func (i *Inspector) UUID() shm.UUID {
	if i.reader == nil {
		return shm.UUID{}
	}
	return i.reader.Header().UUID
}
