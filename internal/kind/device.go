package kind

import (
	"fmt"
	"sync/atomic"

	"github.com/shmring/shmring/shm"
)

// SectFrames is the section of a UMEM object that holds the frames.
const SectFrames shm.SectionKind = 0x58465246 // "FRFX"

// Bounds of a UMEM. The kernel wants chunks of the first at least, and of a page at most, in huge
// pages too.
const (
	MinChunkBytes = 2048
	MaxChunkBytes = 4096
	MaxFrames     = 1 << 20
	RecordBytes   = 64 // of what stands in front of a received packet
)

// UMEM is what is fixed when a UMEM is made: what a peer has to know to make sense of an address in
// it.
type UMEM struct {
	Frames, ChunkBytes, HeadroomBytes uint32
	Unaligned                         bool // chunks need not begin at multiples of a power of two
}

var umemCodec = codec[UMEM]{
	{Attribute{"frames", Bound{Least: 1, Most: MaxFrames}, "how many"},
		func(u *UMEM) any { return &u.Frames }},
	{Attribute{"chunk bytes", Bound{Least: MinChunkBytes, Most: MaxChunkBytes}, "of each frame"},
		func(u *UMEM) any { return &u.ChunkBytes }},
	{Attribute{"headroom bytes", Bound{Least: RecordBytes, Most: MinChunkBytes / 2, Step: 8},
		"of each frame, in front of the kernel's"}, func(u *UMEM) any { return &u.HeadroomBytes }},
	{Attribute{"unaligned", Bound{Most: 1}, "whether chunks may have any size"},
		func(u *UMEM) any { return &u.Unaligned }},
}

// UMEMAttributes describes the attributes of a UMEM.
var UMEMAttributes = umemCodec.attributes()

// Bytes is the size of all frames.
func (u UMEM) Bytes() uint64 { return uint64(u.Frames) * uint64(u.ChunkBytes) }

// Spec is the layout of a UMEM.
func (u UMEM) Spec(name string) shm.Spec {
	s := shm.Spec{Kind: shm.KindUMEM, Name: name, Sections: []shm.Section{{Kind: SectFrames,
		Length: u.Bytes(), ElemSize: uint64(u.ChunkBytes), Capacity: uint64(u.Frames)}}}
	umemCodec.put(&s, u)
	return s
}

// Check says what cannot be of a UMEM.
func (u UMEM) Check() error {
	var s shm.Spec
	umemCodec.put(&s, u)
	_, err := takeUMEM(shm.Header{Attrs: s.Attrs})
	return err
}

func takeUMEM(h shm.Header) (UMEM, error) {
	u, err := umemCodec.take(h)
	if err == nil && u.ChunkBytes&(u.ChunkBytes-1) != 0 && !u.Unaligned {
		err = fmt.Errorf("chunks of %d bytes, possible are %d and %d, or between if Unaligned",
			u.ChunkBytes, MinChunkBytes, MaxChunkBytes)
	}
	return u, err
}

// StoredUMEM returns how a UMEM says that it is divided, bounded, if its frames are just so many
// bytes.
func StoredUMEM(obj *shm.Object) (u UMEM, err error) {
	h := obj.Header()
	if err := CheckKind(h, shm.KindUMEM); err != nil {
		return u, err
	}
	if bits := (h.FeatROCompat | h.FeatIncompat) >> 32; bits != 0 {
		return u, &shm.Error{Op: "open", Name: h.Name, Field: "feature bits from 32 on", Got: bits,
			Want: 0, Err: shm.ErrVersion, Hint: "use the version of the library that made the object"}
	}
	mem, _, err := obj.Section(SectFrames, 0)
	if err != nil {
		return u, err
	}
	return storedUMEM(obj.Name(), h, mem)
}

func storedUMEM(name string, h shm.Header, mem []byte) (u UMEM, err error) {
	refuse := func(field string, got, want any) (UMEM, error) {
		return u, &shm.Error{Pkg: "xdp", Op: "open", Name: name, Field: field, Got: got, Want: want,
			Err: shm.ErrCorrupt}
	}
	if u, err = takeUMEM(h); err != nil {
		return refuse("attributes", err, "what NewUMEM writes")
	}
	if u.Bytes() != uint64(len(mem)) {
		return refuse("length of the frames", len(mem), u.Bytes())
	}
	return u, nil
}

// Capture is what is fixed when a capture is made.
type Capture struct{ Slots, SnapBytes uint64 }

// Bounds of what a capture may take.
const (
	MinCaptureSlots = 16
	MaxCaptureSlots = 1 << 16
	MaxSnapBytes    = 64 << 10
)

var captureCodec = codec[Capture]{
	{Attribute{"slots", Bound{Least: MinCaptureSlots, Most: MaxCaptureSlots, PowerOf2: true},
		"packets that it holds"}, func(c *Capture) any { return &c.Slots }},
	{Attribute{"snap bytes", Bound{Least: 1, Most: MaxSnapBytes},
		"of a packet that are kept; those of a slot are this, rounded up to 64"},
		func(c *Capture) any { return &c.SnapBytes }},
}

// Put writes the attributes of a capture.
func (c Capture) Put(s *shm.Spec) { captureCodec.put(s, c) }

// StoredCapture returns them, bounded.
func StoredCapture(name string, h shm.Header) (c Capture, err error) {
	if err = CheckKind(h, shm.KindCapture); err != nil {
		return c, err
	}
	if c, err = captureCodec.take(h); err != nil {
		return c, &shm.Error{Pkg: "capture", Op: "open", Name: name, Field: "attributes", Got: err,
			Want: "what a capture writes", Err: shm.ErrCorrupt}
	}
	return c, nil
}

// Sections of the status page that the server of a device writes for an application.
const (
	SectDone   shm.SectionKind = 0x58440001 // a word for each send slot
	SectCounts shm.SectionKind = 0x58440002
)

// AttrPageFrames is how many frames the application may have at most.
const AttrPageFrames = 0

// PageAttributes describes the attributes of a status page.
var PageAttributes = Attributes{AttrPageFrames: {"frames", Bound{Most: MaxFrames},
	"that the application may have at most; 0: not said"}}

// Words of the counts section.
const (
	CountReceived = iota
	CountNoFrame  // packets dropped because the application has all its frames
	CountNoRoom   // packets dropped because its queue is full
	CountReturned
	CountStale
	CountSent
	CountFailed
	// Both are the number of an update: the first is stored before its first count, the second after
	// its last. So counts that were loaded between loads of the second and of the first, which are
	// equal, are of one moment.
	CountBegun
	CountEnded
	CountBadChecksum
	PageMaxPayload // no count: bytes of the longest datagram just now; 0: as granted
	CountBytes     = 4096
)

// PageSpec is the layout of a status page.
func PageSpec(frames, sends int, generation uint64) shm.Spec {
	s := shm.Spec{Kind: shm.KindRegion, Name: "device-status", Generation: generation,
		Sections: []shm.Section{
			{Kind: SectDone, Length: uint64(sends) * 8, ElemSize: 8, Capacity: uint64(sends)},
			{Kind: SectCounts, Length: CountBytes, ElemSize: 8, Capacity: CountBytes / 8}}}
	s.Attrs[AttrPageFrames] = uint64(frames)
	return s
}

// IsStatusPage reports whether an object is the status page of an application.
func IsStatusPage(obj *shm.Object) bool {
	_, _, err := obj.Section(SectDone, 0)
	return err == nil && obj.Header().Kind == shm.KindRegion
}

// PageCounts returns the counts of a status page.
func PageCounts(obj *shm.Object) ([]atomic.Uint64, error) {
	mem, _, err := obj.Section(SectCounts, 0)
	if err == nil && len(mem) != CountBytes {
		err = &shm.Error{Pkg: "device", Op: "map status page", Field: "bytes of the counts",
			Got: len(mem), Want: CountBytes, Err: shm.ErrCorrupt}
	}
	if err != nil {
		return nil, err
	}
	return Overlays[atomic.Uint64](mem), nil
}

// momentTries bounds how often numbers are loaded that change meanwhile.
const momentTries = 64

// Moment calls load until what it loads is of one moment, between two updates: whoever updates
// stores the number of the update in begun before it, and in ended after it. If these differ there
// is no such moment: it updates all the time, or died in an update.
func Moment(begun, ended *Word, load func()) (b, e uint64) {
	for range momentTries {
		e = ended.Load()
		load()
		if b = begun.Load(); b == e {
			break
		}
	}
	return b, e
}
