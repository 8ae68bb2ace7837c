package xdp

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/shm"
)

const hugePageBytes = 2 << 20

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

// packetBytes is the longest packet that fits a frame.
func (g Geometry) packetBytes() uint32 {
	return g.ChunkBytes - g.HeadroomBytes - xskernel.HeadroomBytes
}

// bytes is the size of all frames.
func (g Geometry) bytes() uint64 { return kind.UMEM(g).Bytes() }

// Chunk returns the offset of the chunk that an offset in the UMEM lies in; the record of a
// received frame begins there.
func (g Geometry) Chunk(off uint64) uint64 {
	if g.Unaligned {
		return off - off%uint64(g.ChunkBytes)
	}
	return off &^ (uint64(g.ChunkBytes) - 1)
}

func (o UMEMOptions) geometry() (Geometry, error) {
	g := Geometry{Frames: o.Frames, ChunkBytes: o.ChunkBytes, HeadroomBytes: o.HeadroomBytes,
		Unaligned: o.Unaligned}
	if g.Frames == 0 {
		g.Frames = 2048
	}
	if g.ChunkBytes == 0 {
		g.ChunkBytes = kind.MinChunkBytes
	}
	if g.HeadroomBytes == 0 {
		g.HeadroomBytes = RecordBytes
	}
	if err := kind.UMEM(g).Check(); err != nil {
		return g, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	return g, nil
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
	spec := kind.UMEM(g).Spec(o.Name)
	spec.Generation = o.Generation
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
	region, err := shm.NewRegion(obj, kind.SectFrames)
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
// of the UMEM. The descriptor of its object is what a peer opens with [OpenUMEM].
func (u *UMEM) Region() *shm.Region { return u.region }

// Geometry says how the memory is divided.
func (u *UMEM) Geometry() Geometry { return u.geo }

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
	g, err := kind.StoredUMEM(obj)
	if err != nil {
		_ = obj.Close()
		return nil, Geometry{}, err
	}
	region, err := shm.NewRegion(obj, kind.SectFrames)
	if err != nil {
		_ = obj.Close()
		return nil, Geometry{}, err
	}
	return region, Geometry(g), nil
}

// RecordBytes is the size of the record that the process of the socket writes at the start of the
// chunk of every received frame. It lies in the headroom, which the kernel never touches.
const RecordBytes = kind.RecordBytes

// Offsets within a record.
const (
	recSequence   = 0
	recRxTime     = 8
	recSrcIP      = 16
	recDstIP      = 32
	recSrcPort    = 48
	recDstPort    = 50
	recQueue      = 52
	recVLAN       = 54
	recPayloadOff = 56
	recPayloadLen = 58
	recFrameLen   = 60
	recFlags      = 62
)

// Flags of a Record.
const (
	// RecordVLAN says that the frame carried at least one tag, the outermost of which is in VLAN.
	RecordVLAN = 1 << iota
	// RecordChecksumOK says that the UDP checksum was computed over the bytes and is right.
	// Without it the sum was absent, partial as veth leaves it, or wrong.
	RecordChecksumOK
	// RecordChecksumWrong says that the bytes are damaged: they are not what was sent. Only who asked
	// for such datagrams gets them.
	RecordChecksumWrong
)

// Record is what is known about a received frame beside its bytes. The process of the socket writes
// it before the completion is published, and leaves it alone until the frame is returned.
type Record struct {
	// Sequence is the index of the frame's completion in its lane; the low 32 bits are the
	// generation that a return has to name.
	Sequence   uint64
	RxNs       uint64 // CLOCK_MONOTONIC when the frame was taken from the ring
	Src, Dst   netip.AddrPort
	Queue      uint16 // of the interface
	VLAN       uint16 // tag control information, if Flags has RecordVLAN
	PayloadOff uint16 // from the start of the frame
	PayloadLen uint16
	FrameLen   uint16
	Flags      uint16
}

// Put writes the record into b, which has room for RecordBytes. With patch there is one of the same
// addresses, queue and tag, which stay.
func (r *Record) Put(b []byte, patch bool) {
	_ = b[RecordBytes-1]
	le := binary.LittleEndian
	le.PutUint64(b[recSequence:], r.Sequence)
	le.PutUint64(b[recRxTime:], r.RxNs)
	le.PutUint16(b[recPayloadOff:], r.PayloadOff)
	le.PutUint16(b[recPayloadLen:], r.PayloadLen)
	le.PutUint16(b[recFrameLen:], r.FrameLen)
	le.PutUint16(b[recFlags:], r.Flags)
	if patch {
		return
	}
	src, dst := r.Src.Addr().As16(), r.Dst.Addr().As16()
	copy(b[recSrcIP:], src[:])
	copy(b[recDstIP:], dst[:])
	le.PutUint16(b[recSrcPort:], r.Src.Port())
	le.PutUint16(b[recDstPort:], r.Dst.Port())
	le.PutUint16(b[recQueue:], r.Queue)
	le.PutUint16(b[recVLAN:], r.VLAN)
}

// readRecord decodes a record. It panics if b is shorter than RecordBytes and believes nothing
// else: offsets in the result are to be bounded by whoever uses them. Addresses are IPv4 where the
// frame's were.
func readRecord(b []byte) Record {
	_ = b[RecordBytes-1]
	le := binary.LittleEndian
	addr := func(ip, port int) netip.AddrPort {
		a := netip.AddrFrom16([16]byte(b[ip : ip+16])).Unmap()
		return netip.AddrPortFrom(a, le.Uint16(b[port:]))
	}
	return Record{
		Sequence:   le.Uint64(b[recSequence:]),
		RxNs:       le.Uint64(b[recRxTime:]),
		Src:        addr(recSrcIP, recSrcPort),
		Dst:        addr(recDstIP, recDstPort),
		Queue:      le.Uint16(b[recQueue:]),
		VLAN:       le.Uint16(b[recVLAN:]),
		PayloadOff: le.Uint16(b[recPayloadOff:]),
		PayloadLen: le.Uint16(b[recPayloadLen:]),
		FrameLen:   le.Uint16(b[recFrameLen:]),
		Flags:      le.Uint16(b[recFlags:]),
	}
}

// ReadFrame returns the record of the loaned frame that ref points into. Memory and reference come
// from another process: both are checked, and the record is a copy.
func ReadFrame(r *shm.Region, g Geometry, ref shm.Ref) (Record, error) {
	if ref.Offset() >= g.bytes() {
		return Record{}, fmt.Errorf("xdp: frame at %v of %d bytes: %w", ref, g.bytes(), ErrFrame)
	}
	loan, err := r.View(shm.MakeRef(ref.Region(), g.Chunk(ref.Offset())), RecordBytes)
	if err != nil {
		return Record{}, err
	}
	defer loan.Release()
	return readRecord(loan.Bytes()), nil
}
