package shm

import (
	"errors"
	"syscall"
	"testing"
)

// sectionRow is a row of a section table, as a hostile creator would write it.
func sectionRow(kind, id uint32, offset, length, elem, capacity, align uint64) []byte {
	b := make([]byte, sectionBytes)
	le.PutUint32(b[secKind:], kind)
	le.PutUint32(b[secID:], id)
	for at, v := range map[int]uint64{secOffset: offset, secLength: length, secElem: elem,
		secCapacity: capacity, secAlign: align} {
		le.PutUint64(b[at:], v)
	}
	return b
}

// FuzzSections has an object with an arbitrary section table, in a file of up to 16 pages that is
// mapped for real. What opens has sections that can be read and written from their first byte to
// their last, none of which reaches into another one or into the header.
func FuzzSections(f *testing.F) {
	const page = headerBytes
	row := func(kind uint32, offset, length, elem, capacity, align uint64) []byte {
		return sectionRow(kind, 0, offset, length, elem, capacity, align)
	}
	two := append(row(1, page, page, 8, 512, page), row(2, 2*page, 100, 0, 0, 64)...)
	f.Add(two, uint8(3), uint8(0))
	f.Add(two, uint8(3), uint8(1))
	f.Add(append(row(1, page, 64, 64, 1, 64), row(2, page+64, 64, 0, 0, 64)...), uint8(2), uint8(0))
	f.Add(append(row(1, page, page, 0, 0, page), row(2, page+64, 64, 0, 0, 64)...), uint8(2),
		uint8(0))
	f.Add(append(row(1, page, 64, 0, 0, 64), row(1, 2*page, 64, 0, 0, 64)...), uint8(3), uint8(2))
	for _, far := range []uint64{0, page - 64, 3 * page, 1 << 47, ^uint64(0), ^uint64(page - 1)} {
		f.Add(row(1, far, page, 1, page, 64), uint8(3), uint8(0))
		f.Add(row(1, page, far, 1, far, 64), uint8(3), uint8(1))
		f.Add(row(1, page, page, far, 2, far), uint8(3), uint8(2))
	}
	fd, err := sysMemfd("fuzz", 0)
	if err == nil {
		err = syscall.Fchmod(fd, 0o600)
	}
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { sysClose(fd) })
	h := goldenHeader(f)
	f.Fuzz(func(t *testing.T, table []byte, pages, how uint8) {
		h.Sections, h.TotalBytes = nil, (1+uint64(pages)%16)*page
		image := imageOf(h)
		copy(image[offSections:offChecksum], table)
		le.PutUint32(image[offSectionCnt:], uint32(min(len(table)/sectionBytes, 255)))
		seal(image)
		if err := errors.Join(sysResize(fd, 0), sysResize(fd, h.TotalBytes),
			sysAllocate(fd, 0, h.TotalBytes)); err != nil {
			t.Fatal(err)
		}
		if _, err := syscall.Pwrite(fd, image[:page], 0); err != nil {
			t.Fatal(err)
		}
		acc := Access(how % 3)
		o, err := OpenFD(fd, "fuzz", acc)
		if possible := tablePossible(table, h.TotalBytes); (err == nil) != possible {
			t.Fatalf("the table is possible: %v, open: %v", possible, err)
		}
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("untyped: %v", err)
			}
			return
		}
		defer o.Close()
		touchSections(t, o, acc)
	})
}

// tablePossible says the same as the library's checks, with a map of who owns which byte instead of
// arithmetic on bounds.
func tablePossible(table []byte, total uint64) bool {
	owned := make([]bool, total)
	names := map[uint64]bool{}
	if len(table)/sectionBytes > maxSections {
		return false
	}
	for ; len(table) >= sectionBytes; table = table[sectionBytes:] {
		s := decodeSection(table)
		name := uint64(s.Kind)<<32 | uint64(s.ID)
		if s.Length == 0 || s.Length > total || s.Offset < headerBytes || s.Offset >= total ||
			s.Align < 64 || s.Align > 1<<30 || s.Align&(s.Align-1) != 0 || s.Offset%s.Align != 0 ||
			names[name] {
			return false
		}
		if s.ElemSize == 0 != (s.Capacity == 0) ||
			s.ElemSize != 0 && s.Length/s.ElemSize < s.Capacity {
			return false
		}
		names[name] = true
		for at := s.Offset; at < s.Offset+s.Length; at++ {
			if at >= total || owned[at] {
				return false
			}
			owned[at] = true
		}
	}
	return true
}

// touchSections writes to every section what tells it from all others, and reads it back.
func touchSections(t *testing.T, o *Object, acc Access) {
	t.Helper()
	h := o.Header()
	for i, s := range h.Sections {
		mem, err := o.MapWritable(s.Kind, s.ID)
		if err == nil && acc == Inspect {
			t.Fatal("writable after opening to inspect")
		}
		if err != nil && acc == ReadWrite {
			t.Fatalf("section %d: %v", i, err)
		}
		for at := range mem {
			mem[at] = byte(i + 1)
		}
		if err != nil || acc != ReadOnly {
			continue
		}
		w, err := o.Window(s.Kind, s.ID)
		if err != nil || uint64(len(w.Bytes())) != s.Length || w.Bytes()[0] != byte(i+1) {
			t.Fatalf("section %d: window, %v", i, err)
		}
		must(t, w.Close())
	}
	for i, s := range h.Sections {
		mem, got, err := o.Section(s.Kind, s.ID)
		if err != nil || got != s || uint64(len(mem)) != s.Length || cap(mem) != len(mem) {
			t.Fatalf("section %d is %d bytes, %d: %v", i, len(mem), s.Length, err)
		}
		first := mem[0]
		if first != 0 && first != byte(i+1) {
			t.Fatalf("section %d has what section %d got", i, first-1)
		}
		for at, b := range mem {
			if b != first {
				t.Fatalf("section %d has %d at %d and %d before", i, b, at, first)
			}
		}
	}
	if _, err := DecodeHeader(o.Bytes()[:headerBytes], h.TotalBytes); err != nil {
		t.Fatalf("the header afterwards: %v", err)
	}
}
