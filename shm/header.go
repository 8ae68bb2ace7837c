package shm

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
)

var le = binary.LittleEndian

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// stateReady is the state of an object that is complete; before that it is 0.
const stateReady = 1

// Known feature bits among those that belong to this package.
const (
	commonFeatures = 1<<32 - 1
	knownROCompat  = 0
	knownIncompat  = featLate

	// featLate: EarlyBytes counts. Whoever does not know it takes such an object for truncated.
	featLate = 1 << 0
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
	EarlyBytes    uint64 // of them with memory from the beginning; all but those of late sections
	Sections      []Section
	Owner         Owner
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
	if h.FeatIncompat&featLate != 0 {
		le.PutUint64(page[offEarly:], h.EarlyBytes)
	}
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

// Layout of page 0, in bytes from its start; the package comment draws it.
const (
	headerBytes = 4096 // also on systems with larger pages, whose first section begins later

	offMagic      = 0
	offByteOrder  = offMagic + 8
	offABIMajor   = offByteOrder + 4
	offABIMinor   = offABIMajor + 2
	offHeaderLen  = offABIMinor + 2
	offKind       = offHeaderLen + 4
	offTotal      = offKind + 4
	offFeatCompat = offTotal + 8
	offFeatRO     = offFeatCompat + 8
	offFeatIncomp = offFeatRO + 8
	offUUID       = offFeatIncomp + 8
	offGeneration = offUUID + 16
	offBootID     = offGeneration + 8
	offPID        = offBootID + 16
	offPIDNS      = offPID + 8
	offStart      = offPIDNS + 8
	offMonoNs     = offStart + 8
	offRealNs     = offMonoNs + 8
	offNameLen    = offRealNs + 8
	offSectionCnt = offNameLen + 4
	offName       = offSectionCnt + 4
	offEarly      = offName + maxNameBytes // 0: all, and there is no featLate
	offReserved   = offEarly + 8           // zero; a later minor version may use it
	offAttrs      = offReserved + 40
	offSections   = offAttrs + attrCount*8
	offChecksum   = offSections + maxSections*sectionBytes // CRC32C of everything before it

	// The words that change. Each group is a line of its own, apart by 128 bytes because
	// prefetchers fetch lines in pairs.
	offState      = 0xa00 // written last by the creator
	offTurn       = 0xa80 // number of owner records written; its low bit picks the slot
	offCurrentGen = offTurn + 8
	offOwner0     = 0xb00
	offOwner1     = offOwner0 + ownerBytes
	offDeaths     = offOwner1 + ownerBytes

	attrCount    = 16
	maxSections  = 32
	sectionBytes = 64
	ownerBytes   = 128
)

// An entry of the section table, in bytes from its start.
const (
	secKind     = 0
	secID       = secKind + 4
	secOffset   = secID + 4
	secLength   = secOffset + 8
	secElem     = secLength + 8
	secCapacity = secElem + 8
	secHash     = secCapacity + 8
	secAlign    = secHash + 8
	secEnd      = secAlign + 8
)

// An owner record, in bytes from its start.
const (
	ownPID     = 0
	ownPIDNS   = ownPID + 8
	ownStart   = ownPIDNS + 8
	ownBootLo  = ownStart + 8
	ownBootHi  = ownBootLo + 8
	ownState   = ownBootHi + 8
	ownClaimed = ownState + 8
	ownGen     = ownClaimed + 8
	ownProgram = ownGen + 8
	// ownProgramGen is the generation that ownProgram is of. A version that knows neither word leaves
	// those of a former owner.
	ownProgramGen = ownProgram + 8
	ownEnd        = ownProgramGen + 8
)

const (
	magic         = "shmring\x00"
	byteOrderMark = 0x01020304 // little-endian: 04 03 02 01
	byteOrderSwap = 0x04030201

	// ABIMajor and ABIMinor are the version of the layout. Major 0 is unstable: both numbers
	// must then match. From major 1 on a higher minor version only adds what may be ignored.
	ABIMajor = 0
	ABIMinor = 1
)

// Every offset is pinned: an index other than 0 does not compile.
var (
	pin = [1]struct{}{}

	_ = pin[offByteOrder-0x008]
	_ = pin[offABIMajor-0x00c]
	_ = pin[offABIMinor-0x00e]
	_ = pin[offHeaderLen-0x010]
	_ = pin[offKind-0x014]
	_ = pin[offTotal-0x018]
	_ = pin[offFeatCompat-0x020]
	_ = pin[offFeatRO-0x028]
	_ = pin[offFeatIncomp-0x030]
	_ = pin[offUUID-0x038]
	_ = pin[offGeneration-0x048]
	_ = pin[offBootID-0x050]
	_ = pin[offPID-0x060]
	_ = pin[offPIDNS-0x068]
	_ = pin[offStart-0x070]
	_ = pin[offMonoNs-0x078]
	_ = pin[offRealNs-0x080]
	_ = pin[offNameLen-0x088]
	_ = pin[offSectionCnt-0x08c]
	_ = pin[offName-0x090]
	_ = pin[offEarly-0x0d0]
	_ = pin[offReserved-0x0d8]
	_ = pin[offAttrs-0x100]
	_ = pin[offSections-0x180]
	_ = pin[offChecksum-0x980]
	_ = pin[offState-0xa00]
	_ = pin[offTurn-0xa80]
	_ = pin[offCurrentGen-0xa88]
	_ = pin[offOwner0-0xb00]
	_ = pin[offOwner1-0xb80]
	_ = pin[offDeaths-0xc00]

	_ = pin[secID-0x04]
	_ = pin[secOffset-0x08]
	_ = pin[secLength-0x10]
	_ = pin[secElem-0x18]
	_ = pin[secCapacity-0x20]
	_ = pin[secHash-0x28]
	_ = pin[secAlign-0x30]

	_ = pin[ownPIDNS-0x08]
	_ = pin[ownStart-0x10]
	_ = pin[ownBootLo-0x18]
	_ = pin[ownBootHi-0x20]
	_ = pin[ownState-0x28]
	_ = pin[ownClaimed-0x30]
	_ = pin[ownGen-0x38]
	_ = pin[ownProgram-0x40]
	_ = pin[ownProgramGen-0x48]

	_ = [1]struct{}{}[uint(secEnd)/(sectionBytes+1)]
	_ = [1]struct{}{}[uint(ownEnd)/(ownerBytes+1)]
	_ = [1]struct{}{}[uint(offChecksum+4)/(offState+1)]
	_ = [1]struct{}{}[uint(offDeaths+deathSlots*deathBytes)/(headerBytes+1)]
	_ = [1]struct{}{}[uint(deadEnd)/(deathBytes+1)]
)

// DecodeHeader checks a private copy of page 0 of an object of fileBytes bytes. It returns an
// error, or a header whose every section is in bounds, aligned and apart from all others.
// The caller copies the page first: memory that others write could change between two looks.
// Feature bits are not checked here, for what they forbid depends on what one wants to do.
func DecodeHeader(page []byte, fileBytes uint64) (_ Header, err error) {
	if err := checkFrame(page, fileBytes); err != nil {
		return Header{}, err
	}
	h := Header{
		ABIMajor:      le.Uint16(page[offABIMajor:]),
		ABIMinor:      le.Uint16(page[offABIMinor:]),
		Kind:          Kind(le.Uint32(page[offKind:])),
		UUID:          UUID(page[offUUID : offUUID+16]),
		Generation:    le.Uint64(page[offGeneration:]),
		BootID:        UUID(page[offBootID : offBootID+16]),
		FeatCompat:    le.Uint64(page[offFeatCompat:]),
		FeatROCompat:  le.Uint64(page[offFeatRO:]),
		FeatIncompat:  le.Uint64(page[offFeatIncomp:]),
		CreatorPID:    boundPID(le.Uint64(page[offPID:])),
		CreatorPIDNS:  le.Uint64(page[offPIDNS:]),
		CreatorStart:  le.Uint64(page[offStart:]),
		CreatedMonoNs: int64(le.Uint64(page[offMonoNs:])),
		CreatedRealNs: int64(le.Uint64(page[offRealNs:])),
		TotalBytes:    le.Uint64(page[offTotal:]),
	}
	for i := range h.Attrs {
		h.Attrs[i] = le.Uint64(page[offAttrs+8*i:])
	}
	nameBytes := le.Uint32(page[offNameLen:])
	if nameBytes > maxNameBytes {
		return Header{}, damaged("name length", nameBytes, "at most 64")
	}
	h.Name = string(page[offName : offName+nameBytes])
	if h.Kind == 0 {
		return Header{}, damaged("kind", 0, "not zero")
	}
	if h.UUID == (UUID{}) {
		return Header{}, damaged("uuid", h.UUID, "not zero")
	}
	if err := h.decodeSections(page); err != nil {
		return Header{}, err
	}
	if h.EarlyBytes, err = h.early(le.Uint64(page[offEarly:])); err != nil {
		return Header{}, err
	}
	h.Owner, _ = loadOwner(bytes.Clone(page)) // whose words are aligned
	return h, nil
}

// early bounds how much of an object has memory from the beginning.
func (h *Header) early(bytes uint64) (uint64, error) {
	late := h.FeatIncompat&featLate != 0
	switch {
	case !late && bytes == 0:
		return h.TotalBytes, nil
	case late && bytes >= headerBytes && bytes < h.TotalBytes && bytes%headerBytes == 0:
		return bytes, nil
	}
	return 0, damaged("bytes from the beginning", bytes, "whole pages with late sections, else 0")
}

// checkFrame checks what must hold before any other field means anything.
func checkFrame(page []byte, fileBytes uint64) error {
	if len(page) < headerBytes || fileBytes < headerBytes {
		return &Error{Field: "size", Got: fileBytes, Want: "at least 4096 bytes",
			Err: ErrTruncated, Hint: "it is no object of this library, or was truncated; remove it"}
	}
	if got := page[offMagic : offMagic+8]; string(got) != magic {
		return damaged("magic", string(got), magic)
	}
	switch mark := le.Uint32(page[offByteOrder:]); mark {
	case byteOrderMark:
	case byteOrderSwap:
		return &Error{Field: "byte order", Got: "big-endian", Want: "little-endian",
			Err: ErrVersion}
	default:
		return damaged("byte order mark", mark, byteOrderMark)
	}
	major, minor := le.Uint16(page[offABIMajor:]), le.Uint16(page[offABIMinor:])
	if major != ABIMajor || major == 0 && minor != ABIMinor {
		return &Error{Field: "ABI version", Got: [2]uint16{major, minor},
			Want: [2]uint16{ABIMajor, ABIMinor}, Err: ErrVersion,
			Hint: "let all processes use one version of the library"}
	}
	if state := le.Uint64(page[offState:]); state != stateReady {
		return damaged("state", state, "1: it was never finished")
	}
	if n := le.Uint32(page[offHeaderLen:]); n != headerBytes {
		return damaged("header length", n, headerBytes)
	}
	sum := crc32.Checksum(page[:offChecksum], castagnoli)
	if got := le.Uint32(page[offChecksum:]); got != sum {
		return damaged("checksum", got, sum)
	}
	total := le.Uint64(page[offTotal:])
	if total < headerBytes || total > maxObjectBytes || total%headerBytes != 0 {
		return damaged("total size", total, "whole pages")
	}
	if fileBytes < total {
		return &Error{Field: "size", Got: fileBytes, Want: total, Err: ErrTruncated,
			Hint: "the file was truncated after it was made; let its owner make it again"}
	}
	if fileBytes > total {
		return damaged("size", fileBytes, total)
	}
	return nil
}

func (h *Header) decodeSections(page []byte) error {
	n := le.Uint32(page[offSectionCnt:])
	if n > maxSections {
		return damaged("number of sections", n, "at most 32")
	}
	h.Sections = make([]Section, n)
	for i := range h.Sections {
		s := decodeSection(page[offSections+i*sectionBytes:])
		if err := checkPlaced(s, h.TotalBytes, h.Sections[:i]); err != nil {
			err.Err = ErrCorrupt
			err.Hint = damagedHint
			return inSection(i, err)
		}
		h.Sections[i] = s
	}
	return nil
}

func decodeSection(b []byte) Section {
	return Section{
		Kind:       SectionKind(le.Uint32(b[secKind:])),
		ID:         le.Uint32(b[secID:]),
		Offset:     le.Uint64(b[secOffset:]),
		Length:     le.Uint64(b[secLength:]),
		ElemSize:   le.Uint64(b[secElem:]),
		Capacity:   le.Uint64(b[secCapacity:]),
		LayoutHash: le.Uint64(b[secHash:]),
		Align:      le.Uint64(b[secAlign:]),
	}
}

// checkPlaced checks a section against the object and the sections before it in the table.
func checkPlaced(s Section, total uint64, before []Section) *Error {
	if err := checkSection(s); err != nil {
		return err.(*Error)
	}
	if s.Offset < headerBytes || s.Offset > total || s.Length > total-s.Offset {
		return invalid("range", [2]uint64{s.Offset, s.Length}, "inside the object")
	}
	if s.Offset%s.Align != 0 {
		return invalid("offset", s.Offset, "aligned")
	}
	for _, o := range before {
		if s.Offset < o.Offset+o.Length && o.Offset < s.Offset+s.Length {
			return invalid("range", [2]uint64{s.Offset, s.Length}, "apart from other sections")
		}
		if s.Kind == o.Kind && s.ID == o.ID {
			return invalid("kind and id", [2]uint32{uint32(s.Kind), s.ID}, "unique")
		}
	}
	return nil
}

const damagedHint = "remove the object and let its owner make it anew"

func damaged(field string, got, want any) *Error {
	return &Error{Field: field, Got: got, Want: want, Err: ErrCorrupt, Hint: damagedHint}
}
