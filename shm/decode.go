package shm

import "hash/crc32"

// DecodeHeader checks a private copy of page 0 of an object of fileBytes bytes. It returns an
// error, or a header whose every section is in bounds, aligned and apart from all others.
// The caller copies the page first: memory that others write could change between two looks.
// Feature bits are not checked here, for what they forbid depends on what one wants to do.
func DecodeHeader(page []byte, fileBytes uint64) (Header, error) {
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
		State:         ObjectState(le.Uint64(page[offState:])),
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
	if h.UUID.IsZero() {
		return Header{}, damaged("uuid", h.UUID, "not zero")
	}
	if err := h.decodeSections(page); err != nil {
		return Header{}, err
	}
	h.Owner = decodeOwner(page)
	return h, nil
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
	if state := le.Uint64(page[offState:]); ObjectState(state) != ObjectReady {
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
