package ctl

import (
	"bytes"
	"encoding/hex"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/inspect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/text"
	"github.com/shmring/shmring/shm"
)

// Tail holds entries of a queue. They stay in the queue: looking takes none.
type Tail struct {
	Queue string     `json:"queue"`
	Lanes []LaneTail `json:"lanes"`
}

// LaneTail holds entries of one lane, oldest first. If Error is set only the row is known.
type LaneTail struct {
	Row   int      `json:"row"`
	Own   bool     `json:"own"` // of the reader's own library: row 0
	Error *Problem `json:"error"`
	State *string  `json:"state"` // nil without an Error; as Lane.State
	PID   *int     `json:"pid"`   // of the writer, the last one if it is gone
	Tail  *uint64  `json:"tail"`  // next index to be published
	// Missed counts entries that came since the last look and are not shown: they were overwritten,
	// or more came than was asked for.
	Missed  uint64  `json:"missed"`
	Entries []Entry `json:"entries"`
}

// Entry is a completion, or a failed operation.
type Entry struct {
	Index     uint64   `json:"index"`   // counts the entries of the lane
	State     string   `json:"state"`   // waiting, peeked or released
	Context   *uint64  `json:"context"` // nil: no posted operation stands behind it
	Flags     []string `json:"flags"`   // those that have a name
	FlagBits  uint64   `json:"flag_bits"`
	Len       uint64   `json:"len"`
	Buf       *Place   `json:"buf"` // nil: none
	Data      uint64   `json:"data"`
	Tag       uint64   `json:"tag"`
	Src       *uint64  `json:"src"` // nil: not available
	Solicited bool     `json:"solicited"`
	Failure   *Failure `json:"failure"` // nil for a completion
	Event     *Event   `json:"event"`   // nil in a completion queue
}

// How far an entry has come.
const (
	EntryWaiting  = "waiting"  // published, and not handed to the application
	EntryPeeked   = "peeked"   // handed out by Peek, and not given back
	EntryReleased = "released" // read: it is only still there
)

// Event is what an entry of an event queue says beside context and data. The event of a failed
// operation has no name.
type Event struct {
	Name    *string `json:"name"` // as NOTIFY, or a number
	FID     *FID    `json:"fid"`  // the object that it is about; nil: none
	Payload string  `json:"payload"`
}

// FID names an object to every process.
type FID struct {
	Kind       string `json:"kind"`
	ID         uint64 `json:"id"`
	Generation uint64 `json:"generation"`
}

// Place is where bytes are.
type Place struct {
	Region uint16 `json:"region"`
	Offset uint64 `json:"offset"`
}

// Failure is what an entry says of an operation that failed.
type Failure struct {
	Errno        int32   `json:"errno"`
	Name         *string `json:"name"` // of the number, as ETRUNC
	Message      string  `json:"message"`
	ProvErrno    int32   `json:"prov_errno"`    // the poster's own number
	OverrunBytes uint64  `json:"overrun_bytes"` // that did not fit
	Data         string  `json:"data"`          // the poster's own detail, in hex
}

// Entries returns the last n entries of each lane of a queue, and after the first time only those
// that came since the time before: then lanes without news are left out. A queue that was destroyed
// is fs.ErrNotExist; the next call finds one that was created since, and begins with all its lanes.
func (m *Monitor) Entries(name string, n int) (Tail, error) {
	t := Tail{Queue: name, Lanes: []LaneTail{}}
	err := m.look(name, func(v *view, q *inspect.Queue) error {
		v.entries(&t, q, max(n, 0), m.copied)
		return nil
	})
	return t, err
}

// entries adds what each lane has to tell.
func (v *view) entries(t *Tail, m *inspect.Queue, n int, copied func()) {
	first := v.next == nil
	if id := m.Reader.Header().UUID; first || id != v.uuid { // the lanes of a queue begin at 0
		v.uuid, v.next = id, map[int]uint64{}
	}
	for row := range m.Options.Rows {
		obj, there := m.Lanes[row]
		if !there {
			continue
		}
		l := LaneTail{Row: row, Own: row == 0, Entries: []Entry{}}
		since, seen := v.next[row]
		if err := obj.Read(func(obj *shm.Object) error {
			return l.read(obj, m, n, since, copied)
		}); err != nil {
			l = LaneTail{Row: row, Own: row == 0, Entries: []Entry{}, Error: NewProblem(err),
				State: new(stateOfError(err))}
		} else {
			v.next[row] = *l.Tail
			if seen && *l.Tail > since { // also those that n leaves out
				l.Missed = *l.Tail - since - uint64(len(l.Entries))
			}
		}
		if first || len(l.Entries) > 0 || l.Missed > 0 {
			t.Lanes = append(t.Lanes, l)
		}
	}
}

// read takes the last n entries out of the lane's memory, those included that were read and whose
// place was not used again, but none whose index is below since. One that is waiting or peeked is
// whole. One that was read may just be overwritten: it is left out as soon as that shows, and can
// only be mixed with its successor while a writer is between filling that and publishing it.
func (l *LaneTail) read(obj *shm.Object, q *inspect.Queue, n int, since uint64,
	copied func(),
) error {
	m, err := kind.LaneOf[cq.Entry](obj, l.Row, q.Options)
	if err != nil {
		return err
	}
	r, capacity := &q.Rows[l.Row], uint64(q.Options.Capacity)
	level, err := kind.ReadLevel(r, m.Words, capacity, obj.Name())
	if err != nil {
		return err
	}
	l.Tail = &level.Tail
	if pid := obj.Owner().PID; pid != 0 {
		l.PID = &pid
	}
	for at := max(since, level.Tail-min(level.Tail, capacity, uint64(n))); at < level.Tail; at++ {
		e, whole := entryAt(&m, at, q.Options.Events, copied)
		if !whole {
			continue
		}
		// What the reader had not given back when the copy was complete cannot have changed.
		if e.Index, e.State = at, EntryWaiting; at < r.Head.Load() {
			e.State = EntryReleased
		} else if at < level.Peeked {
			e.State = EntryPeeked
		}
		l.Entries = append(l.Entries, e)
	}
	return nil
}

// entryAt copies an entry out of its slot, unless another one is there by now, or was never there:
// a lane that was removed goes on in a new object at its old index.
func entryAt(m *kind.Lane[cq.Entry], at uint64, events bool, copied func()) (Entry, bool) {
	slot := &m.Slots[at&m.Detail.Mask]
	e, record := kind.LoadLine(slot), kind.LoadLine(m.Detail.Record(at))
	data := record.Data[:]
	if events {
		data = bytes.Clone(m.Detail.Data(at))
	}
	copied()
	if e.Meta.Seq() != uint32(at) || kind.LoadLine(slot).Meta != e.Meta ||
		m.Words.Tail.Load() > at+uint64(len(m.Slots)) {
		return Entry{}, false
	}
	var out Entry
	if events {
		out = event(&e)
	} else {
		out = completion(&e)
	}
	switch e.Meta & kind.SlotKindMask {
	case kind.SlotError:
		out.Failure = failure(&record, data)
	case kind.SlotEntry:
		if events {
			if e.Len > uint64(len(data)) {
				return Entry{}, false
			}
			out.Len, out.Event.Payload = e.Len, hex.EncodeToString(data[:e.Len])
			out.Event.Name = new(inspect.EventName(cq.EventKind(uint32(e.Flags))))
		}
	default:
		return Entry{}, false
	}
	return out, true
}

// event translates an entry of an event queue, whose words mean something else; see package cq.
func event(e *cq.Entry) Entry {
	out := Entry{Context: &e.Context, Flags: []string{}, Data: e.Data, Event: &Event{}}
	if fid := (FID{Kind: cq.FIDKind(e.Flags >> 32).String(), ID: e.Tag,
		Generation: e.Src.AddrPlus1}); e.Flags>>32 != 0 || fid.ID != 0 || fid.Generation != 0 {
		out.Event.FID = &fid
	}
	return out
}

func completion(e *cq.Entry) Entry {
	out := Entry{Flags: inspect.FlagNames(e.Flags), FlagBits: uint64(e.Flags), Len: e.Len,
		Data: e.Data, Tag: e.Tag, Solicited: e.Meta&cq.MetaSolicited != 0}
	if e.Meta&cq.MetaNoContext == 0 {
		out.Context = &e.Context
	}
	if e.Buf != 0 {
		out.Buf = &Place{Region: e.Buf.Region(), Offset: e.Buf.Offset()}
	}
	if from := e.Src.Addr(); from != cq.AddrNotAvail {
		out.Src = new(uint64(from))
	}
	return out
}

// failure bounds what the writer says of an operation that failed.
func failure(r *kind.Record, data []byte) *Failure {
	err := cq.Errno(r.Err)
	f := &Failure{Errno: r.Err, Message: text.Printable(err.Error()), ProvErrno: r.ProvErrno,
		OverrunBytes: r.OverrunBytes,
		Data:         hex.EncodeToString(data[:min(r.DataBytes, uint64(len(data)))])}
	if name := inspect.ErrnoName(err); name != "" {
		f.Name = &name
	}
	return f
}
