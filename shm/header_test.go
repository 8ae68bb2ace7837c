package shm

import (
	"errors"
	"flag"
	"hash/crc32"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shmring/shmring/internal/shmtest"
)

var update = flag.Bool("update", false, "write the golden images anew")

const goldenPath = "../testdata/golden/"

// goldenHeader is an object of fixed content, with pages of 4096 bytes whatever the machine has.
func goldenHeader(t testing.TB) Header { return goldenWith(t, 0) }

// goldenWith is one with late sections.
func goldenWith(t testing.TB, late int) Header {
	t.Helper()
	spec := specFor("orders")
	spec.Late = late
	sections, total, early, err := place(spec, headerBytes)
	shmtest.Must(t, err)
	boot, ok := parseUUID("00112233-4455-6677-8899-aabbccddeeff")
	if !ok {
		t.Fatal("UUID does not parse")
	}
	return Header{ABIMajor: 0, ABIMinor: 1, Kind: KindLane, Name: "orders",
		UUID: UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, Generation: 41,
		BootID: boot, FeatCompat: 1, FeatIncompat: uint64(min(late, 1)),
		Attrs: spec.Attrs, CreatorPID: 4242, CreatorPIDNS: 4026531836,
		CreatorStart: 98765, CreatedMonoNs: 1_000_000_007,
		CreatedRealNs: 1_700_000_000_000_000_009, TotalBytes: total, EarlyBytes: early,
		Sections: sections,
		Owner: Owner{PID: 4243, PIDNS: 4026531836, StartTicks: 98766,
			BootID: boot, State: StateReleased, ClaimedNs: 1_000_000_008, Generation: 42}}
}

// imageOf writes page 0 and zero sections.
func imageOf(h Header) []byte {
	image := make([]byte, h.TotalBytes)
	encodeHeader(image, &h)
	storeOwner(image, h.Owner)
	le.PutUint64(image[offState:], stateReady)
	return image
}

func seal(page []byte) {
	le.PutUint32(page[offChecksum:], crc32.Checksum(page[:offChecksum], castagnoli))
}

func TestGoldenImage(t *testing.T) {
	t.Run("object", func(t *testing.T) { holdsGolden(t, "object-v0.1.bin", goldenHeader(t)) })
	t.Run("late", func(t *testing.T) { holdsGolden(t, "late-v0.1.bin", goldenWith(t, 1)) })
}

func holdsGolden(t *testing.T, file string, want Header) {
	image := imageOf(want)
	if *update {
		shmtest.Must(t, os.WriteFile(goldenPath+file, image, 0o644))
	}
	golden := shmtest.Got(os.ReadFile(goldenPath + file)).Or(t)
	if string(golden) != string(image) {
		t.Error("the layout has changed: raise the ABI version and run with -update")
	}
	got := shmtest.Got(DecodeHeader(golden, uint64(len(golden)))).Or(t)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	d := openTestDir(t)
	path := filepath.Join(d.Path(), "golden")
	shmtest.Must(t, os.WriteFile(path, golden, 0o600))
	t.Cleanup(func() { os.Remove(path) })
	o := openObject(t, d, "golden", Inspect)
	if diff := cmp.Diff(want, o.Header()); diff != "" {
		t.Error(diff)
	}
	if o.Owner() != want.Owner || o.Generation() != 42 {
		t.Errorf("owner %+v, generation %d", o.Owner(), o.Generation())
	}
}

func TestDecodeRefuses(t *testing.T) {
	sec := func(i, off int) int { return offSections + i*sectionBytes + off }
	put64 := func(off int, v uint64) func([]byte) {
		return func(p []byte) { le.PutUint64(p[off:], v); seal(p) }
	}
	put32 := func(off int, v uint32) func([]byte) {
		return func(p []byte) { le.PutUint32(p[off:], v); seal(p) }
	}
	early := func(v uint64) func([]byte) {
		return func(p []byte) { le.PutUint64(p[offFeatIncomp:], featLate); put64(offEarly, v)(p) }
	}
	for name, c := range map[string]struct {
		change func([]byte)
		want   error
	}{
		"empty magic":        {func(p []byte) { clear(p[:8]) }, ErrCorrupt},
		"big-endian":         {put32(offByteOrder, byteOrderSwap), ErrVersion},
		"byte order mark":    {put32(offByteOrder, 1), ErrCorrupt},
		"major version":      {func(p []byte) { le.PutUint16(p[offABIMajor:], 7); seal(p) }, ErrVersion},
		"minor version":      {func(p []byte) { le.PutUint16(p[offABIMinor:], 7); seal(p) }, ErrVersion},
		"half written":       {func(p []byte) { le.PutUint64(p[offState:], 0) }, ErrCorrupt},
		"unknown state":      {func(p []byte) { le.PutUint64(p[offState:], 9) }, ErrCorrupt},
		"header length":      {put32(offHeaderLen, 64), ErrCorrupt},
		"checksum":           {func(p []byte) { p[offChecksum]++ }, ErrCorrupt},
		"kind zero":          {put32(offKind, 0), ErrCorrupt},
		"uuid zero":          {func(p []byte) { clear(p[offUUID:][:16]); seal(p) }, ErrCorrupt},
		"name length":        {put32(offNameLen, 65), ErrCorrupt},
		"section count":      {put32(offSectionCnt, 33), ErrCorrupt},
		"total not pages":    {put64(offTotal, 4097), ErrCorrupt},
		"total larger":       {put64(offTotal, 1<<30), ErrTruncated},
		"total smaller":      {put64(offTotal, 8192), ErrCorrupt},
		"total enormous":     {put64(offTotal, 1<<63), ErrCorrupt},
		"early, none late":   {put64(offEarly, 4096), ErrCorrupt},
		"late, none early":   {put64(offFeatIncomp, featLate), ErrCorrupt},
		"early too much":     {early(1 << 20), ErrCorrupt},
		"early not pages":    {early(4097), ErrCorrupt},
		"section in page 0":  {put64(sec(0, secOffset), 0), ErrCorrupt},
		"section outside":    {put64(sec(0, secOffset), 1<<40), ErrCorrupt},
		"section overflow":   {put64(sec(0, secOffset), 1<<64-4096), ErrCorrupt},
		"section too long":   {put64(sec(1, secLength), 1<<20), ErrCorrupt},
		"section empty":      {put64(sec(1, secLength), 0), ErrCorrupt},
		"sections overlap":   {put64(sec(1, secOffset), 4096), ErrCorrupt},
		"section misaligned": {put64(sec(1, secOffset), 4096*3+64), ErrCorrupt},
		"alignment odd":      {put64(sec(1, secAlign), 100), ErrCorrupt},
		"alignment zero":     {put64(sec(1, secAlign), 0), ErrCorrupt},
		"capacity overflow":  {put64(sec(0, secCapacity), 1<<60), ErrCorrupt},
		"capacity alone":     {put64(sec(1, secCapacity), 1), ErrCorrupt},
		"duplicate section": {func(p []byte) {
			copy(p[sec(1, 0):][:8], p[sec(0, 0):][:8])
			seal(p)
		}, ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			image := imageOf(goldenHeader(t))
			c.change(image)
			_, err := DecodeHeader(image, uint64(len(image)))
			var e *Error
			if !errors.Is(err, c.want) || !errors.As(err, &e) || e.Field == "" {
				t.Errorf("got %v, want %v with a field", err, c.want)
			}
		})
	}
}

// Every single changed byte of the immutable part must be noticed.
func TestDecodeNoticesEveryByte(t *testing.T) {
	image := imageOf(goldenHeader(t))
	for i := range offChecksum + 4 {
		image[i] ^= 0x10
		if _, err := DecodeHeader(image, uint64(len(image))); err == nil {
			t.Fatalf("byte %#x changed unnoticed", i)
		}
		image[i] ^= 0x10
	}
	for n := range headerBytes {
		if _, err := DecodeHeader(image[:n], uint64(n)); !errors.Is(err, ErrTruncated) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	section := func(change func(*Section)) Spec {
		spec := specFor("x")
		change(&spec.Sections[0])
		return spec
	}
	for name, spec := range map[string]Spec{
		"no kind":         {},
		"long name":       {Kind: KindLane, Name: string(make([]byte, 65))},
		"many sections":   {Kind: KindLane, Sections: make([]Section, 33)},
		"open to others":  {Kind: KindLane, Mode: 0o644},
		"odd alignment":   section(func(s *Section) { s.Align = 96 }),
		"huge alignment":  section(func(s *Section) { s.Align = 1 << 40 }),
		"empty section":   section(func(s *Section) { s.Length = 0 }),
		"endless section": section(func(s *Section) { s.Length = 1<<64 - 1 }),
		"capacity":        section(func(s *Section) { s.Capacity = 129 }),
		"duplicate":       section(func(s *Section) { s.Kind, s.ID = secHint, 3 }),
	} {
		if _, err := Plan(spec); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: got %v, want EINVAL", name, err)
		}
	}
}

func TestPlanPlacesSections(t *testing.T) {
	spec := specFor("x")
	spec.Sections[1].Align = 128
	spec.Sections = append(spec.Sections, Section{Kind: 9, Length: 1})
	got, total, _, err := place(spec, 4096)
	shmtest.Must(t, err)
	if got[0].Offset != 4096 || got[1].Offset != 12288 || got[2].Offset != 16384 || total != 20480 {
		t.Errorf("%+v, total %d", got, total)
	}
	if n, err := Plan(spec); err != nil || n < total {
		t.Errorf("Plan = %d, %v", n, err)
	}
}

// FuzzHeader changes the fields and the section table of a finished page. The checksum is made to
// fit, since it is no obstacle for one who writes on purpose. The parts are small and apart,
// because mutations of a whole page nearly always miss what matters.
func FuzzHeader(f *testing.F) {
	h := goldenHeader(f)
	image := imageOf(h)
	f.Add(image[:offReserved], image[offSections:offSections+3*sectionBytes], h.TotalBytes)
	h.Sections, h.TotalBytes = nil, headerBytes
	f.Add(imageOf(h)[:offReserved], []byte{}, h.TotalBytes)
	f.Fuzz(func(t *testing.T, fields, table []byte, fileBytes uint64) {
		page := make([]byte, headerBytes)
		copy(page[:offReserved], fields)
		copy(page[offSections:offChecksum], table)
		page[offState] = stateReady
		seal(page)
		h, err := DecodeHeader(page, fileBytes)
		if err != nil {
			return
		}
		if h.TotalBytes != fileBytes || len(h.Name) > maxNameBytes {
			t.Fatalf("accepted %+v for a file of %d bytes", h, fileBytes)
		}
		for i, s := range h.Sections {
			end := s.Offset + s.Length
			if s.Offset < headerBytes || end < s.Offset || end > fileBytes || s.Length == 0 ||
				s.Offset%s.Align != 0 || s.Align&(s.Align-1) != 0 {
				t.Fatalf("section %d: %+v in %d bytes", i, s, fileBytes)
			}
			for _, o := range h.Sections[:i] {
				if s.Offset < o.Offset+o.Length && o.Offset < end {
					t.Fatalf("sections overlap: %+v and %+v", s, o)
				}
			}
		}
	})
}

// What is wrong is found where it is, and not by what follows from it: a count that is believed
// once leads out of the page the next time.
func TestDecodeNamesTheField(t *testing.T) {
	for want, change := range map[string]func(p []byte){
		"number of sections": func(p []byte) { le.PutUint32(p[offSectionCnt:], maxSections+1) },
		"name length":        func(p []byte) { le.PutUint32(p[offNameLen:], maxNameBytes+1) },
		"header length":      func(p []byte) { le.PutUint32(p[offHeaderLen:], headerBytes-64) },
	} {
		image := imageOf(goldenHeader(t))
		change(image)
		seal(image)
		_, err := DecodeHeader(image, uint64(len(image)))
		var e *Error
		if !errors.As(err, &e) || e.Field != want {
			t.Errorf("%v, want one of the %s", err, want)
		}
	}
}
