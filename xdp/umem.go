package xdp

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/shmring/shmring/shm"
)

// SectionFrames is the section of a UMEM object that holds the frames.
const SectionFrames shm.SectionKind = 0x58465246 // "FRFX"

// Attributes of a UMEM object: what a peer has to know to make sense of an address in it.
const (
	attrFrames = iota
	attrChunkBytes
	attrHeadroomBytes
	attrUnaligned // 1 if chunks need not begin at multiples of a power of two

	attrs // how many there are
)

// Bounds of chunks. The kernel wants at least the first, and a page at most, in huge pages too.
const (
	minChunkBytes = 2048
	maxChunkBytes = 4096
	hugePageBytes = 2 << 20
	maxFrames     = 1 << 20
)

// UMEMOptions size a UMEM. Zero values stand for the defaults.
type UMEMOptions struct {
	Name   string // shows in /proc/PID/maps; "umem" by default
	Frames uint32 // 2048 by default, which is 4 MiB and fits a memlock limit of 8 MiB
	// ChunkBytes is the room of one frame: 2048 (default) or 4096. A packet has ChunkBytes less
	// HeadroomBytes less 256 of it.
	ChunkBytes uint32
	// HeadroomBytes are kept free at the start of each chunk, in front of the 256 that are the
	// kernel's. At least, and by default, RecordBytes.
	HeadroomBytes uint32
	// Generation tells this UMEM from those that a former process had. Zero draws one at random.
	Generation uint64
	// HugePages asks for memory in pages of 2 MiB, which have to be reserved (vm.nr_hugepages).
	// Where there are none it is ordinary memory, and UMEM.HugePages says why.
	HugePages bool
	// Unaligned lets ChunkBytes be any number to a page, not just a power of two, so that less
	// memory is lost. A driver that does not copy wants HugePages with it.
	Unaligned bool
}

// Geometry says how the memory of a UMEM is divided.
type Geometry struct {
	Frames        uint32
	ChunkBytes    uint32
	HeadroomBytes uint32
	Unaligned     bool // ChunkBytes is not necessarily a power of two
}

// PacketBytes is the longest packet that fits a frame.
func (g Geometry) PacketBytes() uint32 {
	return g.ChunkBytes - g.HeadroomBytes - kernelHeadroomBytes
}

// bytes is the size of all frames.
func (g Geometry) bytes() uint64 { return uint64(g.Frames) * uint64(g.ChunkBytes) }

// Chunk returns the offset of the chunk that an offset in the UMEM lies in; the record of a
// received frame begins there.
func (g Geometry) Chunk(off uint64) uint64 {
	if g.Unaligned {
		return off - off%uint64(g.ChunkBytes)
	}
	return off &^ (uint64(g.ChunkBytes) - 1)
}

func (g Geometry) check() error {
	switch {
	case g.Frames == 0 || g.Frames > maxFrames:
		return fmt.Errorf("%w: %d frames, possible are 1 to %d", ErrOptions, g.Frames, maxFrames)
	case g.ChunkBytes < minChunkBytes || g.ChunkBytes > maxChunkBytes ||
		bits.OnesCount32(g.ChunkBytes) != 1 && !g.Unaligned:
		return fmt.Errorf("%w: chunks of %d bytes, possible are 2048 and 4096, or between if "+
			"Unaligned", ErrOptions, g.ChunkBytes)
	case g.HeadroomBytes < RecordBytes || g.HeadroomBytes > minChunkBytes/2 ||
		g.HeadroomBytes%8 != 0:
		return fmt.Errorf("%w: headroom of %d bytes, possible are %d to %d in steps of 8",
			ErrOptions, g.HeadroomBytes, RecordBytes, minChunkBytes/2)
	}
	return nil
}

func (o UMEMOptions) geometry() (Geometry, error) {
	g := Geometry{Frames: o.Frames, ChunkBytes: o.ChunkBytes, HeadroomBytes: o.HeadroomBytes,
		Unaligned: o.Unaligned}
	if g.Frames == 0 {
		g.Frames = 2048
	}
	if g.ChunkBytes == 0 {
		g.ChunkBytes = minChunkBytes
	}
	if g.HeadroomBytes == 0 {
		g.HeadroomBytes = RecordBytes
	}
	return g, g.check()
}

// UMEM is the memory that a device receives into and sends from. It lives in a memfd that is sealed
// once this process has mapped it: a peer that gets the descriptor can read the frames and can
// neither write nor resize them. Whoever gets it sees all traffic of the socket.
//
// Sockets on several queues, or devices, may take frames of one UMEM, each its own part. A frame
// that a socket has had is not used again by one that is opened later, nor by a process that comes
// after this one, since the kernel may still be writing to it when the socket is closed.
type UMEM struct {
	region  *shm.Region
	geo     Geometry
	huge    bool
	hugeErr error

	mu    sync.Mutex
	next  uint32    // frames before this one were given to sockets
	bound []*Socket // that are not closed, in the order of Open
	users int       // sockets that are not closed, bound or not
}

// take gives frames to a socket: n of them, or all that are left for 0.
func (u *UMEM) take(n uint32) (first, frames uint32, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	left := u.geo.Frames - u.next
	if n == 0 {
		n = left
	}
	if left == 0 || n > left {
		return 0, 0, fmt.Errorf("%w: %d frames are left of %d", ErrUMEMUsed, left, u.geo.Frames)
	}
	first = u.next
	u.next += n
	u.users++
	return first, n, nil
}

// hold and drop count a socket that uses frames of another one.
func (u *UMEM) hold() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.users++
}

func (u *UMEM) drop(s *Socket) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.users--
	u.bound = slices.DeleteFunc(u.bound, func(b *Socket) bool { return b == s })
}

// NewUMEM makes a UMEM. Errors: [ErrOptions], and those of [shm.CreateMemfd].
func NewUMEM(o UMEMOptions) (*UMEM, error) {
	g, err := o.geometry()
	if err != nil {
		return nil, &shm.Error{Pkg: pkg, Op: "create UMEM", Name: o.Name, Err: err}
	}
	spec := shm.Spec{
		Kind: shm.KindUMEM, Generation: o.Generation,
		Name: o.Name,
		Sections: []shm.Section{{
			Kind: SectionFrames, Length: g.bytes(),
			ElemSize: uint64(g.ChunkBytes), Capacity: uint64(g.Frames),
		}},
	}
	spec.Attrs[attrFrames] = uint64(g.Frames)
	spec.Attrs[attrChunkBytes] = uint64(g.ChunkBytes)
	spec.Attrs[attrHeadroomBytes] = uint64(g.HeadroomBytes)
	if g.Unaligned {
		spec.Attrs[attrUnaligned] = 1
	}
	obj, hugeErr, err := createUMEM(spec, o.HugePages)
	if err != nil {
		return nil, err
	}
	// After our own writable mapping: the seal forbids any that comes later, ours included.
	seals := shm.SealShrink | shm.SealGrow | shm.SealFutureWrite | shm.SealSeal
	if err := obj.Seal(seals); err != nil {
		_ = obj.Close()
		return nil, err
	}
	region, err := shm.NewRegion(obj, SectionFrames)
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	return &UMEM{region: region, geo: g, huge: o.HugePages && hugeErr == nil,
		hugeErr: hugeErr}, nil
}

// createUMEM makes the memory, of huge pages if they are wanted and there are any.
func createUMEM(spec shm.Spec, huge bool) (o *shm.Object, hugeErr, err error) {
	if huge {
		spec.HugePageBytes = hugePageBytes
		if o, hugeErr = shm.CreateMemfd(spec, nil); hugeErr == nil {
			return o, nil, nil
		}
		spec.HugePageBytes = 0
	}
	o, err = shm.CreateMemfd(spec, nil)
	return o, hugeErr, err
}

// HugePages reports whether the memory has huge pages, and if they were asked for why it has none.
func (u *UMEM) HugePages() (has bool, why error) { return u.huge, u.hugeErr }

// Region returns the frames as references to them see it: the offset of a reference is an address
// of the UMEM.
func (u *UMEM) Region() *shm.Region { return u.region }

// Geometry says how the memory is divided.
func (u *UMEM) Geometry() Geometry { return u.geo }

// FD returns the descriptor that a peer opens with [OpenUMEM]. It stays the UMEM's.
func (u *UMEM) FD() int { return u.region.Object().FD() }

// Close waits until this process has released its loans, or ctx ends, and unmaps the UMEM. It fails
// while a socket on it is open.
func (u *UMEM) Close(ctx context.Context) error {
	u.mu.Lock()
	used := u.users > 0
	u.mu.Unlock()
	if used {
		return &shm.Error{Pkg: pkg, Op: "close UMEM", Name: u.region.Object().Name(), Err: ErrUMEMUsed,
			Hint: "close the socket first"}
	}
	return u.region.Close(ctx)
}

// OpenUMEM maps the UMEM of another process read-only. It does not own fd. The name is for errors.
// With maxBytes the process may be another user's: the UMEM is to be sealed, and has at most so
// many bytes with its header. Errors: those of [shm.OpenFD] and [shm.OpenPassed], and
// [shm.ErrCorrupt].
func OpenUMEM(fd int, name string, maxBytes uint64) (*shm.Region, Geometry, error) {
	open := func() (*shm.Object, error) { return shm.OpenFD(fd, name, shm.ReadOnly) }
	if maxBytes > 0 {
		open = func() (*shm.Object, error) { return shm.OpenPassed(fd, name, maxBytes) }
	}
	obj, err := open()
	if err != nil {
		return nil, Geometry{}, err
	}
	g, err := geometryOf(obj)
	if err != nil {
		_ = obj.Close()
		return nil, Geometry{}, err
	}
	region, err := shm.NewRegion(obj, SectionFrames)
	if err != nil {
		_ = obj.Close()
		return nil, Geometry{}, err
	}
	return region, g, nil
}

func geometryOf(obj *shm.Object) (Geometry, error) {
	h := obj.Header()
	if err := h.CheckKind(shm.KindUMEM); err != nil {
		return Geometry{}, err
	}
	if err := h.CheckFeatures(0, 0, shm.ReadOnly); err != nil {
		return Geometry{}, err
	}
	mem, _, err := obj.Section(SectionFrames, 0)
	if err != nil {
		return Geometry{}, err
	}
	bad := func(field string, got, want any) error {
		return &shm.Error{Pkg: pkg, Op: "open", Name: obj.Name(), Field: field, Got: got, Want: want,
			Err: shm.ErrCorrupt}
	}
	for i, limit := range [attrs]uint64{maxFrames, maxChunkBytes, minChunkBytes / 2, 1} {
		if h.Attrs[i] > limit {
			return Geometry{}, bad(fmt.Sprintf("attribute %d", i), h.Attrs[i], limit)
		}
	}
	g := Geometry{
		Frames:        uint32(h.Attrs[attrFrames]),
		ChunkBytes:    uint32(h.Attrs[attrChunkBytes]),
		HeadroomBytes: uint32(h.Attrs[attrHeadroomBytes]),
		Unaligned:     h.Attrs[attrUnaligned] == 1,
	}
	if err := g.check(); err != nil {
		return Geometry{}, bad("geometry", fmt.Sprintf("%+v", g), err)
	}
	if g.bytes() != uint64(len(mem)) {
		return Geometry{}, bad("length of the frames", len(mem), g.bytes())
	}
	return g, nil
}
