package cq

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// MemoryDescriptor says to other processes which bytes of which object a region is, and what they
// may do with them. It holds no pointer and means the same everywhere.
type MemoryDescriptor struct {
	UUID       shm.UUID // of the object
	Generation uint64   // of its ownership: a successor's memory is another
	Key        uint64
	Offset     uint64 // from the start of the object
	Length     uint64
	Access     Flags
}

// MemoryDescriptorBytes is the size of a descriptor on its way.
const MemoryDescriptorBytes = 72

const (
	descMagic   = "shmr-MR\x01"
	descUUID    = 8
	descGen     = descUUID + 16
	descKey     = descGen + 8
	descOffset  = descKey + 8
	descLength  = descOffset + 8
	descAccess  = descLength + 8
	descZero    = descAccess + 8
	descSum     = descZero + 4 // CRC32C of what is before it
	descSumEnds = descSum + 4
	_           = uint(descSumEnds - MemoryDescriptorBytes)
	_           = uint(MemoryDescriptorBytes - descSumEnds)
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Describe returns the descriptor that other processes open the region with. ErrNotRegistered says
// that it has no key.
func (r *MemoryRegion) Describe() (MemoryDescriptor, error) {
	key := r.key.Load()
	if key == KeyNotAvail {
		return MemoryDescriptor{}, ErrNotRegistered
	}
	return MemoryDescriptor{UUID: r.obj.Header().UUID, Generation: r.obj.Generation(), Key: key,
		Offset: r.opt.Offset, Length: r.opt.Length, Access: r.opt.Access}, nil
}

// AppendTo appends the descriptor's MemoryDescriptorBytes bytes to b.
func (d *MemoryDescriptor) AppendTo(b []byte) []byte {
	start := len(b)
	b = append(append(b, descMagic...), d.UUID[:]...)
	for _, w := range [...]uint64{d.Generation, d.Key, d.Offset, d.Length, uint64(d.Access)} {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	b = append(b, 0, 0, 0, 0)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// ParseMemoryDescriptor reads a descriptor that AppendTo wrote. Anything else is ErrCorrupt.
func ParseMemoryDescriptor(b []byte) (MemoryDescriptor, error) {
	bad := func(field string, got, want any) (MemoryDescriptor, error) {
		return MemoryDescriptor{}, kind.Refuse("parse", "memory descriptor", field, got, want, ErrCorrupt)
	}
	if len(b) != MemoryDescriptorBytes {
		return bad("length", len(b), MemoryDescriptorBytes)
	}
	if string(b[:descUUID]) != descMagic {
		return bad("magic", string(b[:descUUID]), descMagic)
	}
	got := binary.LittleEndian.Uint32(b[descSum:])
	if sum := crc32.Checksum(b[:descSum], castagnoli); got != sum {
		return bad("checksum", got, sum)
	}
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	d := MemoryDescriptor{UUID: shm.UUID(b[descUUID:descGen]), Generation: word(descGen),
		Key: word(descKey), Offset: word(descOffset), Length: word(descLength),
		Access: Flags(word(descAccess))}
	if d.Access == 0 || d.Access&^memoryAccess != 0 || d.Key == KeyNotAvail ||
		binary.LittleEndian.Uint32(b[descZero:]) != 0 {
		return bad("access and key", []uint64{uint64(d.Access), d.Key}, "those of a region")
	}
	return d, nil
}

// PeerMemory is another process's region, mapped here. Its methods may be called from anywhere, but
// Close only once nobody is in another of them or uses the bytes. In what order goroutines load and
// store those is up to them.
type PeerMemory struct {
	desc MemoryDescriptor
	obj  *shm.Object
	mem  []byte
}

// OpenMemory maps the bytes of another process's region. obj is the object that they are in,
// opened by name or descriptor, in any way; it is needed only for the call. The mapping can be
// written only if the region allows peers to: otherwise a store into it faults.
//
// Errors: shm.ErrStale (ESTALE) if obj is not the object that was meant, or has another owner than
// when the region was registered; EACCES if the region allows peers nothing; ErrInvalid if the
// object has no such bytes; ErrCorrupt, and those of opening shared memory.
func OpenMemory(d MemoryDescriptor, obj *shm.Object) (*PeerMemory, error) {
	const op = "open memory"
	name := obj.Name()
	if got := obj.Header().UUID; got != d.UUID {
		return nil, kind.Refuse(op, name, "uuid", got, d.UUID, shm.ErrStale)
	}
	if got := obj.Generation(); got != d.Generation {
		return nil, kind.Refuse(op, name, "generation", got, d.Generation, shm.ErrStale)
	}
	if d.Access&(FlagRemoteRead|FlagRemoteWrite) == 0 {
		return nil, kind.Refuse(op, name, "access", d.Access, "FlagRemoteRead or FlagRemoteWrite",
			errAccess)
	}
	own, err := shm.OpenFD(obj.FD(), name, shm.ReadOnly)
	if err != nil {
		return nil, failed(op, name, err)
	}
	m := &PeerMemory{desc: d, obj: own}
	m.mem, err = memoryRange(op, own, d.Offset, d.Length, d.Access&FlagRemoteWrite != 0)
	if err != nil {
		_ = own.Close()
		return nil, err
	}
	return m, nil
}

// Bytes returns the memory. It is gone after Close. What it holds is the peer's affair: look at
// each byte once.
func (m *PeerMemory) Bytes() []byte { return m.mem }

// Descriptor returns what the region was opened with.
func (m *PeerMemory) Descriptor() MemoryDescriptor { return m.desc }

// Writable reports whether peers may write.
func (m *PeerMemory) Writable() bool { return m.desc.Access&FlagRemoteWrite != 0 }

// Stale reports whether the object has another owner by now: then nobody looks at what is written
// there, and what is read there is old.
func (m *PeerMemory) Stale() bool { return m.obj.Generation() != m.desc.Generation }

// Close unmaps the memory. It must not be used any more, by anybody. Closing twice is harmless.
func (m *PeerMemory) Close() error { return m.obj.Close() }
