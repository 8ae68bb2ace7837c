package capture

import (
	"errors"
	"fmt"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// ErrBusy says that another tool captures the endpoint.
var ErrBusy = errors.New("capture: another tool captures this endpoint; wait for it, or end it")

// Prefix begins the names of captures.
const Prefix = "capture-"

const (
	sectReader shm.SectionKind = 0x44414552 // "READ"
	sectWriter shm.SectionKind = 0x54495257 // "WRIT"
	sectRecord shm.SectionKind = 0x44434552 // "RECD"
	sectBytes  shm.SectionKind = 0x53545942 // "BYTS"
)

// Offsets within the two small sections, and their lengths.
const (
	offHead     = 0
	readerBytes = 128

	offTail     = 0
	offSeen     = 128 // packets that came by
	offDropped  = 136 // of them, those for which there was no room
	offState    = 144
	writerBytes = 256
)

// States of the endpoint's side.
const (
	stateNew      = 0 // it did not come yet
	stateAttached = 1
	stateLeft     = 2 // it will write no more
)

// record is what is kept of a packet beside its bytes.
type record struct {
	Ns      uint64 // CLOCK_MONOTONIC
	Len     uint32 // of the packet
	Kept    uint32 // bytes of it that are there
	Flags   uint32
	Queue   uint32
	Dropped uint64 // packets left out before this one, since the beginning
	_       [32]uint8
}

const (
	recordBytes  = 64
	recordLayout = "ns u64, len kept flags queue u32, dropped u64, reserved 32"
	flagSent     = 1
)

// Bounds of what a capture may take.
const (
	MaxSnapBytes = kind.MaxSnapBytes
	minSlots     = kind.MinCaptureSlots
	maxSlots     = kind.MaxCaptureSlots
)

func stride(snap uint64) uint64 { return (snap + 63) &^ 63 }

func spec(id shm.UUID, slots, snap uint64) shm.Spec {
	s := shm.Spec{Kind: shm.KindCapture, UUID: id, Sections: []shm.Section{
		{Kind: sectReader, Length: readerBytes},
		{Kind: sectWriter, Length: writerBytes},
		{Kind: sectRecord, Length: slots * recordBytes, ElemSize: recordBytes, Capacity: slots,
			LayoutHash: kind.LayoutHash(recordLayout)},
		{Kind: sectBytes, Length: slots * stride(snap), ElemSize: stride(snap), Capacity: slots},
	}}
	kind.Capture{Slots: slots, SnapBytes: snap}.Put(&s)
	return s
}

// memory is a capture as both sides see it. Geometry is private, from the header that was checked.
type memory struct {
	head, tail, seen, dropped, state *ring.Index
	records                          []record
	bytes                            []byte
	snap, stride                     uint64
}

func lay(obj *shm.Object) (m memory, err error) {
	h := obj.Header()
	c, err := kind.StoredCapture(obj.Name(), h)
	if err != nil {
		return m, err
	}
	slots, snap := c.Slots, c.SnapBytes
	var part [4][]byte
	for i, want := range spec(h.UUID, slots, snap).Sections {
		mem, s, err := obj.Section(want.Kind, 0)
		if err != nil {
			return m, err
		}
		if s.Length != want.Length || s.LayoutHash != want.LayoutHash {
			return m, &shm.Error{Pkg: "capture", Op: "open", Name: obj.Name(), Field: "section",
				Got: s.Length, Want: want.Length, Err: shm.ErrCorrupt}
		}
		part[i] = mem
	}
	m.snap, m.stride, m.bytes = snap, stride(snap), part[3]
	for _, w := range []struct {
		to  **ring.Index
		mem []byte
		off uint64
	}{{&m.head, part[0], offHead}, {&m.tail, part[1], offTail}, {&m.seen, part[1], offSeen},
		{&m.dropped, part[1], offDropped}, {&m.state, part[1], offState}} {
		if *w.to, err = ring.IndexAt(w.mem, w.off); err != nil {
			return m, err
		}
	}
	m.records, err = ring.Slots[record](part[2])
	return m, err
}

// at returns the room for the bytes of the packet with an index.
func (m *memory) at(index uint64) []byte {
	off := (index & uint64(len(m.records)-1)) * m.stride
	return m.bytes[off : off+m.snap : off+m.snap]
}

// Invariants returns what holds of a capture, beyond what holds of every object.
func Invariants() []shm.Invariant {
	return []shm.Invariant{
		{Name: "capture.layout", Exact: true, What: "slots and sections are those of a capture"},
		{Name: "capture.tail", Exact: true, What: "no more is in it than it holds"},
		{Name: "capture.state", Exact: true, What: "the endpoint has not come, is there, or has left"},
	}
}

// Check returns what of that does not hold. It is called while the object is mapped for reading,
// inside [shm.Guard]; packets may come and be read meanwhile.
func Check(obj *shm.Object) (out []shm.Violation) {
	bad := func(name, section string, base, within uint64, got, want any) {
		out = append(out, shm.Violation{Invariant: name, Section: section, Offset: base + within,
			Within: within, Got: fmt.Sprint(got), Want: fmt.Sprint(want)})
	}
	m, err := lay(obj)
	if err != nil {
		bad("capture.layout", "header", 0, 0x100, err, "what a capture has")
		return out
	}
	_, writer, err := obj.Section(sectWriter, 0)
	if err != nil {
		return out
	}
	const tries = 64
	slots := uint64(len(m.records))
	for range tries {
		head := m.head.Load()
		tail := m.tail.Load()
		if m.head.Load() != head {
			continue
		}
		if tail-head > slots {
			bad("capture.tail", "writer", writer.Offset, offTail, tail,
				fmt.Sprintf("%d to %d", head, head+slots))
		}
		break
	}
	if s := m.state.Load(); s > stateLeft {
		bad("capture.state", "writer", writer.Offset, offState, s, "0 to 2")
	}
	return out
}
