package shm

import (
	"fmt"
	"hash/crc32"
)

// Violation is an invariant of an object that does not hold.
type Violation struct {
	Invariant string // its name, which stays
	Section   string
	Offset    uint64 // of the word, in bytes from the start of the file
	Within    uint64 // the same from the start of the section
	Got, Want string
}

// Invariant is something that holds for every object of some kind. An exact one holds at every
// moment while the object is used, also after a process died in the middle of a change. One that is
// not exact holds while nobody changes the object, and is checked only then.
type Invariant struct {
	Name  string
	Exact bool
	What  string
}

// Invariants returns those of every object: of page 0, and of the file.
func Invariants() []Invariant {
	return []Invariant{
		{"file.size", true, "the file has as many bytes as the header says"},
		{"file.memory", true, "in tmpfs, all but those of late sections are allocated"},
		{"header.magic", true, "the object begins with the magic"},
		{"header.byte_order", true, "the byte order mark is of little-endian numbers"},
		{"header.abi", true, "the layout is of this version"},
		{"header.length", true, "the header has 4096 bytes"},
		{"header.kind", true, "the kind is not zero"},
		{"header.total", true, "the size is whole pages, and possible"},
		{"header.early", true, "what has memory from the beginning is whole pages of it"},
		{"header.features", true, "no feature bit is set that is not known"},
		{"header.uuid", true, "the uuid is not zero"},
		{"header.generation", true, "the first generation is not zero"},
		{"header.creator", true, "the creator's process number is possible"},
		{"header.name", true, "the name is bounded, and zeros follow it"},
		{"header.sections", true, "there are at most 32 sections, and zeros follow their table"},
		{"header.zero", true, "what is reserved is zero"},
		{"header.checksum", true, "the checksum is that of what does not change"},
		{"header.state", true, "the object was finished"},
		{"section.align", true, "an alignment is a power of two from 64 on"},
		{"section.length", true, "a length is possible"},
		{"section.capacity", true, "the elements fit the length"},
		{"section.offset", true, "a section is aligned and inside the object"},
		{"section.apart", true, "no two sections overlap"},
		{"section.unique", true, "no two sections have one kind and id"},
		{"owner.turn", true, "some owner's record was written"},
		{"owner.pid", true, "the owner's process number is possible"},
		{"owner.state", true, "the record says that the object is owned, or was released"},
		{"owner.generation", true, "generations grow"},
		{"owner.lock", true, "an owner that lives holds the lock"},
	}
}

// headerCheck collects what is wrong with a page 0.
type headerCheck struct {
	page  []byte
	found []Violation
}

func (c *headerCheck) bad(name string, off int, got, want any) {
	c.found = append(c.found, Violation{Invariant: name, Section: "header", Offset: uint64(off),
		Within: uint64(off), Got: fmt.Sprint(got), Want: fmt.Sprint(want)})
}

// CheckHeader returns all that is wrong with page, a private copy of page 0 of a file of fileBytes
// bytes. Unlike [DecodeHeader] it goes on after the first violation, unless that leaves the rest
// without a meaning. If it finds nothing, DecodeHeader succeeds, and all sections are inside the
// file.
func CheckHeader(page []byte, fileBytes uint64) []Violation {
	c := &headerCheck{page: page}
	if len(page) < headerBytes || fileBytes < headerBytes {
		c.bad("file.size", offTotal, fileBytes, "at least 4096")
		return c.found
	}
	if !c.frame() {
		return c.found
	}
	c.scalars(fileBytes)
	c.table()
	c.zeros()
	if got, sum := le.Uint32(page[offChecksum:]), crc32.Checksum(page[:offChecksum],
		castagnoli); got != sum {
		c.bad("header.checksum", offChecksum, fmt.Sprintf("%#08x", got), fmt.Sprintf("%#08x", sum))
	}
	c.owner()
	return c.found
}

// frame checks what must hold before any other field means anything.
func (c *headerCheck) frame() bool {
	if got := string(c.page[offMagic : offMagic+8]); got != magic {
		c.bad("header.magic", offMagic, fmt.Sprintf("%q", got), fmt.Sprintf("%q", magic))
		return false
	}
	if mark := le.Uint32(c.page[offByteOrder:]); mark != byteOrderMark {
		c.bad("header.byte_order", offByteOrder, fmt.Sprintf("%#x", mark),
			fmt.Sprintf("%#x", byteOrderMark))
		return false
	}
	major, minor := le.Uint16(c.page[offABIMajor:]), le.Uint16(c.page[offABIMinor:])
	if major != ABIMajor || major == 0 && minor != ABIMinor {
		c.bad("header.abi", offABIMajor, fmt.Sprintf("%d.%d", major, minor),
			fmt.Sprintf("%d.%d", ABIMajor, ABIMinor))
		return false
	}
	return true
}

func (c *headerCheck) scalars(fileBytes uint64) {
	p := c.page
	if n := le.Uint32(p[offHeaderLen:]); n != headerBytes {
		c.bad("header.length", offHeaderLen, n, headerBytes)
	}
	if le.Uint32(p[offKind:]) == 0 {
		c.bad("header.kind", offKind, 0, "not zero")
	}
	total := le.Uint64(p[offTotal:])
	if total < headerBytes || total > maxObjectBytes || total%headerBytes != 0 {
		c.bad("header.total", offTotal, total, "whole pages, at most 2^47")
	} else if total != fileBytes {
		c.bad("file.size", offTotal, fileBytes, total)
	}
	h := Header{FeatIncompat: le.Uint64(p[offFeatIncomp:]), TotalBytes: total}
	if _, err := h.early(le.Uint64(p[offEarly:])); err != nil {
		c.bad("header.early", offEarly, le.Uint64(p[offEarly:]), "whole pages with late sections, else 0")
	}
	for _, f := range []struct {
		off   int
		known uint64
	}{{offFeatRO, knownROCompat}, {offFeatIncomp, knownIncompat}} {
		if got := le.Uint64(p[f.off:]) & commonFeatures &^ f.known; got != 0 {
			c.bad("header.features", f.off, fmt.Sprintf("%#x", got), "none that is not known")
		}
	}
	if UUID(p[offUUID:offUUID+16]) == (UUID{}) {
		c.bad("header.uuid", offUUID, 0, "not zero")
	}
	if le.Uint64(p[offGeneration:]) == 0 {
		c.bad("header.generation", offGeneration, 0, "not zero")
	}
	if pid := le.Uint64(p[offPID:]); pid == 0 || pid > maxPID {
		c.bad("header.creator", offPID, pid, "1 to 4194304")
	}
	if state := le.Uint64(p[offState:]); state != stateReady {
		c.bad("header.state", offState, state, stateReady)
	}
	if n := le.Uint32(p[offNameLen:]); n > maxNameBytes {
		c.bad("header.name", offNameLen, n, "at most 64 bytes")
	} else if at := notZero(p, offName+int(n), offEarly); at >= 0 {
		c.bad("header.name", at, "a byte after its end", 0)
	}
}

// table checks the section table.
func (c *headerCheck) table() {
	n := le.Uint32(c.page[offSectionCnt:])
	if n > maxSections {
		c.bad("header.sections", offSectionCnt, n, "at most 32")
		return
	}
	total := le.Uint64(c.page[offTotal:])
	if total%headerBytes != 0 || total > maxObjectBytes {
		total = maxObjectBytes // which was reported
	}
	var before []Section
	for i := range int(n) {
		base := offSections + i*sectionBytes
		s := decodeSection(c.page[base:])
		if name, off, got, want := sectionFault(s, total, before); name != "" {
			c.bad(name, base+off, got, want)
		}
		if at := notZero(c.page, base+secEnd, base+sectionBytes); at >= 0 {
			c.bad("header.zero", at, "a byte", 0)
		}
		before = append(before, s)
	}
	if at := notZero(c.page, offSections+int(n)*sectionBytes, offChecksum); at >= 0 {
		c.bad("header.sections", at, "a byte after their table", 0)
	}
}

// sectionFault returns which invariant a section breaks, or "".
func sectionFault(s Section, total uint64, before []Section) (name string, off int, got,
	want any) {
	switch err := checkSection(s); {
	case s.Align < minAlignBytes || s.Align > maxAlignBytes || s.Align&(s.Align-1) != 0:
		return "section.align", secAlign, s.Align, "a power of two from 64 to 2^30"
	case s.Length == 0 || s.Length > maxObjectBytes:
		return "section.length", secLength, s.Length, "1 to 2^47"
	case err != nil:
		return "section.capacity", secCapacity, s.Capacity, "what fits the length"
	case s.Offset < headerBytes || s.Offset > total || s.Length > total-s.Offset:
		return "section.offset", secOffset, s.Offset, "a place inside the object"
	case s.Offset%s.Align != 0:
		return "section.offset", secOffset, s.Offset, "a multiple of its alignment"
	}
	for _, o := range before {
		if s.Kind == o.Kind && s.ID == o.ID {
			return "section.unique", secKind, [2]uint32{uint32(s.Kind), s.ID}, "no other's"
		}
		if s.Offset < o.Offset+o.Length && o.Offset < s.Offset+s.Length {
			return "section.apart", secOffset, s.Offset, "apart from other sections"
		}
	}
	return "", 0, nil, nil
}

// zeros checks what is reserved. Between the owner's words other packages put nothing.
func (c *headerCheck) zeros() {
	for _, r := range [][2]int{{offReserved, offAttrs}, {offChecksum + 4, offState},
		{offState + 8, offTurn}, {offCurrentGen + 8, offOwner0}, {0xe00, headerBytes}} {
		if at := notZero(c.page, r[0], r[1]); at >= 0 {
			c.bad("header.zero", at, "a byte", 0)
		}
	}
}

// owner checks the record of the owner, in a copy of the page that may have been made while it was
// replaced: then a second copy says something else.
func (c *headerCheck) owner() {
	turn := le.Uint64(c.page[offTurn:])
	if turn == 0 {
		c.bad("owner.turn", offTurn, turn, "not zero")
		return
	}
	base := ownerSlot(turn)
	r := c.page[base:]
	if pid := le.Uint64(r[ownPID:]); pid == 0 || pid > maxPID {
		c.bad("owner.pid", base+ownPID, pid, "1 to 4194304")
	}
	if s := OwnerState(le.Uint64(r[ownState:])); s != StateOwned && s != StateReleased {
		c.bad("owner.state", base+ownState, uint64(s), "1 or 2")
	}
	first, now := le.Uint64(c.page[offGeneration:]), le.Uint64(c.page[offCurrentGen:])
	gen := le.Uint64(r[ownGen:])
	if gen < first {
		c.bad("owner.generation", base+ownGen, gen, fmt.Sprintf("at least %d", first))
	}
	// An owner that died between its record and this word left it behind.
	if now > gen && gen >= first {
		c.bad("owner.generation", offCurrentGen, now, fmt.Sprintf("at most %d", gen))
	}
}

// notZero returns where the first byte stands that is not zero, or -1.
func notZero(b []byte, from, to int) int {
	for i := from; i < to; i++ {
		if b[i] != 0 {
			return i
		}
	}
	return -1
}
