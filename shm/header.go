package shm

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
)

var le = binary.LittleEndian

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ObjectState says whether an object is complete.
type ObjectState uint64

// States of an object.
const (
	ObjectNew   ObjectState = 0 // being written
	ObjectReady ObjectState = 1 // complete
)

// Known feature bits among those that belong to this package.
const (
	commonFeatures = 1<<32 - 1
	knownROCompat  = 0
	knownIncompat  = 0
)

// Header is a private copy of what page 0 of an object said when it was opened.
type Header struct {
	ABIMajor, ABIMinor uint16
	Kind               Kind
	Name               string
	UUID               UUID
	Generation         uint64 // at creation; see [Object.Generation] for the present one
	BootID             UUID   // of the boot in which it was made

	FeatCompat, FeatROCompat, FeatIncompat uint64

	Attrs         [attrCount]uint64
	CreatorPID    int
	CreatorPIDNS  uint64
	CreatorStart  uint64 // clock ticks since boot
	CreatedMonoNs int64  // CLOCK_MONOTONIC
	CreatedRealNs int64  // CLOCK_REALTIME
	TotalBytes    uint64
	Sections      []Section
	State         ObjectState
	Owner         Owner
}

// CheckFeatures refuses feature bits 32 to 63 that the package of this kind does not know:
// incompatible ones always, read-only-compatible ones unless the caller only inspects.
func (h Header) CheckFeatures(roCompat, incompat uint64, acc Access) error {
	return h.checkFeatures(^uint64(commonFeatures), roCompat, incompat, acc)
}

func (h Header) checkFeatures(mask, roCompat, incompat uint64, acc Access) error {
	const hint = "use the version of the library that made the object"
	if bad := h.FeatIncompat & mask &^ incompat; bad != 0 {
		return &Error{Op: "open", Name: h.Name, Field: "incompatible feature bits", Got: bad,
			Want: incompat, Err: ErrVersion, Hint: hint}
	}
	if bad := h.FeatROCompat & mask &^ roCompat; bad != 0 && acc != Inspect {
		return &Error{Op: "open", Name: h.Name, Field: "read-only-compatible feature bits",
			Got: bad, Want: roCompat, Err: ErrVersion, Hint: hint + ", or only inspect it"}
	}
	return nil
}

// find returns the section of this kind and id.
func (h *Header) find(k SectionKind, id uint32) (Section, bool) {
	i := slices.IndexFunc(h.Sections, func(s Section) bool { return s.Kind == k && s.ID == id })
	if i < 0 {
		return Section{}, false
	}
	return h.Sections[i], true
}

// encodeHeader fills the immutable part of page 0. Sections must have been placed.
func encodeHeader(page []byte, h *Header) {
	copy(page[offMagic:], magic)
	le.PutUint32(page[offByteOrder:], byteOrderMark)
	le.PutUint16(page[offABIMajor:], h.ABIMajor)
	le.PutUint16(page[offABIMinor:], h.ABIMinor)
	le.PutUint32(page[offHeaderLen:], headerBytes)
	le.PutUint32(page[offKind:], uint32(h.Kind))
	le.PutUint64(page[offTotal:], h.TotalBytes)
	le.PutUint64(page[offFeatCompat:], h.FeatCompat)
	le.PutUint64(page[offFeatRO:], h.FeatROCompat)
	le.PutUint64(page[offFeatIncomp:], h.FeatIncompat)
	copy(page[offUUID:], h.UUID[:])
	le.PutUint64(page[offGeneration:], h.Generation)
	copy(page[offBootID:], h.BootID[:])
	le.PutUint64(page[offPID:], uint64(h.CreatorPID))
	le.PutUint64(page[offPIDNS:], h.CreatorPIDNS)
	le.PutUint64(page[offStart:], h.CreatorStart)
	le.PutUint64(page[offMonoNs:], uint64(h.CreatedMonoNs))
	le.PutUint64(page[offRealNs:], uint64(h.CreatedRealNs))
	le.PutUint32(page[offNameLen:], uint32(len(h.Name)))
	le.PutUint32(page[offSectionCnt:], uint32(len(h.Sections)))
	copy(page[offName:offName+maxNameBytes], h.Name)
	for i, a := range h.Attrs {
		le.PutUint64(page[offAttrs+8*i:], a)
	}
	for i, s := range h.Sections {
		encodeSection(page[offSections+i*sectionBytes:], s)
	}
	le.PutUint32(page[offChecksum:], crc32.Checksum(page[:offChecksum], castagnoli))
}

func encodeSection(b []byte, s Section) {
	le.PutUint32(b[secKind:], uint32(s.Kind))
	le.PutUint32(b[secID:], s.ID)
	le.PutUint64(b[secOffset:], s.Offset)
	le.PutUint64(b[secLength:], s.Length)
	le.PutUint64(b[secElem:], s.ElemSize)
	le.PutUint64(b[secCapacity:], s.Capacity)
	le.PutUint64(b[secHash:], s.LayoutHash)
	le.PutUint64(b[secAlign:], s.Align)
}
