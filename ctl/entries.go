package ctl

import (
	"encoding/hex"
	"errors"
	"io/fs"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// Tail is entries of a queue as an outsider found them, which takes none.
type Tail struct {
	Queue string     `json:"queue"`
	Lanes []LaneTail `json:"lanes"`
}

// LaneTail is entries of one lane, oldest first. With Error set only the row is known.
type LaneTail struct {
	Row   int      `json:"row"`
	Own   bool     `json:"own"` // of the reader's own library: row 0
	Error *Problem `json:"error"`
	PID   *int     `json:"pid"`  // of the writer, the last one if it is gone
	Tail  *uint64  `json:"tail"` // next index to be published
	// Missed counts entries that came since the look before and are not shown: they were
	// overwritten, or are more than was asked for.
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

// Event is what an entry of an event queue says beside context and data. That of a failed operation
// has no name.
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

// Failure is what an error entry has beyond a completion.
type Failure struct {
	Errno        int32   `json:"errno"`
	Name         *string `json:"name"` // of the number, as ETRUNC
	Message      string  `json:"message"`
	ProvErrno    int32   `json:"prov_errno"`    // the poster's own number
	OverrunBytes uint64  `json:"overrun_bytes"` // that did not fit
	Data         string  `json:"data"`          // the poster's own detail, in hex
}

// Entries returns the last n entries of each lane of a queue.
func Entries(d *shm.Dir, name string, n int) (Tail, error) {
	f := NewFollower(d, name)
	defer f.Close()
	return f.Next(n)
}

// Follower looks at the entries of a queue again and again. It is one goroutine's at a time.
type Follower struct {
	dir       *shm.Dir
	name      string
	inspector *cq.Inspector
	uuid      shm.UUID
	next      map[int]uint64 // by row, the first index that was not there yet
}

// NewFollower returns a follower. The directory must stay open as long as it is.
func NewFollower(d *shm.Dir, name string) *Follower { return &Follower{dir: d, name: name} }

// Close unmaps everything. It may be called again.
func (f *Follower) Close() error {
	if f.inspector == nil {
		return nil
	}
	err := f.inspector.Close()
	f.inspector = nil
	return err
}

// Next returns the last n entries of each lane, and after the first time only those that came since
// the time before: then lanes without news are left out. A queue that was destroyed is
// fs.ErrNotExist; the next call finds one that was created since.
func (f *Follower) Next(n int) (t Tail, err error) {
	t = Tail{Queue: f.name, Lanes: []LaneTail{}}
	if f.inspector == nil {
		if f.inspector, err = cq.Inspect(f.dir, f.name); err != nil {
			return t, err
		}
	}
	lanes, err := f.inspector.Entries(n, f.next)
	if err == nil && f.next != nil && f.inspector.UUID() != f.uuid {
		f.next = map[int]uint64{} // another queue, whose lanes begin at 0
		lanes, err = f.inspector.Entries(n, nil)
	}
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			f.next = nil
		}
		return t, errors.Join(err, f.Close())
	}
	first := f.next == nil
	if first {
		f.next = map[int]uint64{}
	}
	f.uuid = f.inspector.UUID()
	for i := range lanes {
		l := laneTail(&lanes[i])
		since, seen := f.next[l.Row]
		if l.Error == nil {
			f.next[l.Row] = lanes[i].Tail
			if seen && lanes[i].Tail > since { // also those that n leaves out
				l.Missed = lanes[i].Tail - since - uint64(len(l.Entries))
			}
		}
		if first || len(l.Entries) > 0 || l.Missed > 0 {
			t.Lanes = append(t.Lanes, l)
		}
	}
	return t, nil
}

func laneTail(s *cq.LaneEntries) LaneTail {
	l := LaneTail{Row: s.Row, Own: s.Own, Entries: []Entry{}}
	if s.Err != nil {
		l.Error = NewProblem(s.Err)
		return l
	}
	l.Tail = &s.Tail
	if s.Writer.PID != 0 {
		l.PID = &s.Writer.PID
	}
	for i := range s.Entries {
		l.Entries = append(l.Entries, entry(&s.Entries[i]))
	}
	return l
}

// event translates an entry of an event queue, whose words mean something else.
func event(s *cq.EntrySnapshot) Entry {
	out := Entry{Index: s.Index, State: s.State.String(), Flags: []string{}, Event: &Event{}}
	var fid cq.FID
	if e := s.Event; e != nil {
		out.Context, out.Data, fid = &e.Context, e.Data, e.FID
		out.Event.Name, out.Event.Payload = new(e.Event.Name()), hex.EncodeToString(e.Payload)
		out.Len = uint64(len(e.Payload))
	} else {
		e := s.EventError
		out.Context, out.Data, fid = &e.Context, e.Data, e.FID
		out.Failure = failure(e.Err, e.ProvErrno, 0, e.ErrData)
	}
	if fid != (cq.FID{}) {
		out.Event.FID = &FID{Kind: fid.Kind.String(), ID: fid.ID, Generation: fid.Generation}
	}
	return out
}

func failure(err cq.Errno, provErrno int32, overrunBytes uint64, data []byte) *Failure {
	f := &Failure{Errno: int32(err), Message: shm.Printable(err.Error()), ProvErrno: provErrno,
		OverrunBytes: overrunBytes, Data: hex.EncodeToString(data)}
	if name := err.Name(); name != "" {
		f.Name = &name
	}
	return f
}

func entry(s *cq.EntrySnapshot) Entry {
	if s.Event != nil || s.EventError != nil {
		return event(s)
	}
	e := &s.Entry
	out := Entry{Index: s.Index, State: s.State.String(), Flags: e.Flags.Names(),
		FlagBits: uint64(e.Flags), Len: e.Len, Data: e.Data, Tag: e.Tag,
		Solicited: e.Meta&cq.MetaSolicited != 0}
	if out.Flags == nil {
		out.Flags = []string{}
	}
	if e.Meta&cq.MetaNoContext == 0 {
		out.Context = &e.Context
	}
	if e.Buf != 0 {
		out.Buf = &Place{Region: e.Buf.Region(), Offset: e.Buf.Offset()}
	}
	if from := e.Src.Addr(); from != cq.AddrNotAvail {
		out.Src = new(uint64(from))
	}
	if f := s.Error; f != nil {
		out.Failure = failure(f.Err, f.ProvErrno, f.OverrunBytes, f.ErrData)
	}
	return out
}
