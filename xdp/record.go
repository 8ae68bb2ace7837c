package xdp

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

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

// Put writes the record into b, which has room for RecordBytes.
func (r *Record) Put(b []byte) {
	r.patch(b)
	le := binary.LittleEndian
	src, dst := r.Src.Addr().As16(), r.Dst.Addr().As16()
	copy(b[recSrcIP:], src[:])
	copy(b[recDstIP:], dst[:])
	le.PutUint16(b[recSrcPort:], r.Src.Port())
	le.PutUint16(b[recDstPort:], r.Dst.Port())
	le.PutUint16(b[recQueue:], r.Queue)
	le.PutUint16(b[recVLAN:], r.VLAN)
}

// PutLike is Put of a record that has addresses, queue and tag in common with the one that a holds.
func (r *Record) PutLike(b, a []byte) {
	copy(b[:RecordBytes], a[:RecordBytes])
	r.patch(b)
}

// patch writes what differs between packets of one flow.
func (r *Record) patch(b []byte) {
	_ = b[RecordBytes-1]
	le := binary.LittleEndian
	le.PutUint64(b[recSequence:], r.Sequence)
	le.PutUint64(b[recRxTime:], r.RxNs)
	le.PutUint16(b[recPayloadOff:], r.PayloadOff)
	le.PutUint16(b[recPayloadLen:], r.PayloadLen)
	le.PutUint16(b[recFrameLen:], r.FrameLen)
	le.PutUint16(b[recFlags:], r.Flags)
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
