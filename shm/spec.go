package shm

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math/bits"
	"os"
	"syscall"

	"github.com/shmring/shmring/internal/text"
)

// Kind says what an object is for.
type Kind uint32

// The kinds of objects. A tool can list an object without knowing its kind.
const (
	KindQueue  Kind = 1 // what the reader of a queue writes
	KindLane   Kind = 2 // what one producer of a queue writes
	KindBell   Kind = 3 // the wake-up hints of one reading process
	KindRegion Kind = 4 // memory that others read in place
	KindUMEM   Kind = 5 // a region that a network device fills
	KindEvents Kind = 6 // what the reader of an event queue writes

	KindCounter   Kind = 7 // a counter, which many processes write
	KindAddresses Kind = 8 // an address vector

	KindEndpoint Kind = 9  // what an endpoint on a network device says about itself
	KindCapture  Kind = 10 // copies of packets, from an endpoint to a tool

	KindFabric Kind = 11 // what a fabric endpoint, and who sends to it, write
	KindOutbox Kind = 12 // what a fabric endpoint sends
	KindGroup  Kind = 13 // who gets what is sent to a group of fabric endpoints
)

// String returns the lower-case name of the kind.
func (k Kind) String() string {
	return text.Name(k, "kind", "", "queue", "lane", "bell", "region", "umem", "events", "counter",
		"addresses", "endpoint", "capture", "fabric", "outbox", "group")
}

// SectionKind says what a section holds. Its values belong to the packages that use objects.
type SectionKind uint32

// Section is one contiguous part of an object.
type Section struct {
	Kind       SectionKind
	ID         uint32 // tells sections of one kind apart
	Length     uint64 // bytes
	ElemSize   uint64 // bytes; zero together with Capacity when there are no elements
	Capacity   uint64 // number of elements; ElemSize times Capacity fits Length
	LayoutHash uint64 // of the element's layout: peers that say otherwise share no memory
	Align      uint64 // bytes, a power of two from 64 on; 0 in a Spec means a page
	Offset     uint64 // bytes from the start of the object; in a Spec how many to leave free before
}

// Spec describes an object to be made.
type Spec struct {
	Kind       Kind
	Name       string // kept in the header; empty: the name of the file
	UUID       UUID   // zero: random
	Generation uint64 // zero: 1 for a file; random for a memfd, its low 16 bits never zero

	// Feature bits 0 to 31 are this package's (none is defined yet) and checked by it. Bits 32 to
	// 63 mean what the kind says, whose package refuses those in a Header that it does not know.
	FeatCompat, FeatROCompat, FeatIncompat uint64

	Attrs    [attrCount]uint64 // immutable and checksummed; meaning by kind
	Sections []Section
	Mode     os.FileMode // zero: 0600; bits for group and others are refused
	// HugePageBytes makes an object without a name of pages of this size, a power of two that the
	// kernel offers, which are to be reserved (vm.nr_hugepages); 0: ordinary pages.
	HugePageBytes uint64
	// Late is how many of the last sections have no memory before [Object.Provide] gives it to
	// them: it costs none what is never used. Their pages are their own.
	Late int
}

const (
	minAlignBytes  = 64
	maxAlignBytes  = 1 << 30
	maxObjectBytes = 1 << 47 // what a Ref can address, with room
)

// Plan returns how many bytes of shared memory an object of this spec takes, those of late sections
// included.
func Plan(spec Spec) (bytes uint64, err error) {
	_, total, _, err := place(spec, max(pageBytes(), spec.HugePageBytes))
	if err != nil {
		return 0, named("plan", spec.Name, err)
	}
	return total, nil
}

// pageBytes is the unit in which memory can be mapped here, and at least a header.
func pageBytes() uint64 { return max(headerBytes, uint64(os.Getpagesize())) }

// place gives every section its offset and returns the size of the whole object, and how much of it
// has memory from the beginning.
func place(spec Spec, page uint64) (_ []Section, total, early uint64, err error) {
	if err := checkSpec(spec); err != nil {
		return nil, 0, 0, err
	}
	out := make([]Section, len(spec.Sections))
	end := page
	for i, s := range spec.Sections {
		if late := len(out) - spec.Late; i >= late {
			s.Align = max(s.Align, page)
			if i == late {
				early = alignUp(end, page)
			}
		}
		if s.Align == 0 {
			s.Align = page
		}
		if err := checkSection(s); err != nil {
			return nil, 0, 0, inSection(i, err)
		}
		if s.Offset > maxObjectBytes {
			return nil, 0, 0, inSection(i, invalid("bytes left free", s.Offset, "at most 2^47"))
		}
		s.Offset = alignUp(alignUp(end, s.Align)+s.Offset, s.Align)
		end = s.Offset + s.Length // both were bounded: no overflow
		if end > maxObjectBytes {
			return nil, 0, 0, invalid("total bytes", end, "at most 128 TiB")
		}
		for _, o := range out[:i] {
			if o.Kind == s.Kind && o.ID == s.ID {
				return nil, 0, 0, inSection(i, invalid("kind and id", [2]any{s.Kind, s.ID}, "unique"))
			}
		}
		out[i] = s
	}
	total = alignUp(end, page)
	return out, total, cmp.Or(early, total), nil
}

func checkSpec(spec Spec) error {
	switch {
	case spec.Kind == 0:
		return invalid("kind", spec.Kind, "not zero")
	case len(spec.Name) > maxNameBytes:
		return invalid("name length", len(spec.Name), "at most 64 bytes")
	case len(spec.Sections) > maxSections:
		return invalid("number of sections", len(spec.Sections), "at most 32")
	case spec.HugePageBytes&(spec.HugePageBytes-1) != 0 || spec.HugePageBytes > maxAlignBytes:
		return invalid("size of huge pages", spec.HugePageBytes, "a power of two to 2^30")
	case spec.Late < 0 || spec.Late > len(spec.Sections) || spec.Late > 0 && spec.HugePageBytes != 0:
		return invalid("late sections", spec.Late, "no more than there are, of ordinary pages")
	case spec.Mode&^0o700 != 0:
		return invalid("mode", spec.Mode, "nothing for group and others")
	}
	return nil
}

// checkSection checks what does not depend on the place of a section.
func checkSection(s Section) error {
	if s.Align < minAlignBytes || s.Align > maxAlignBytes || s.Align&(s.Align-1) != 0 {
		return invalid("alignment", s.Align, "a power of two from 64 to 2^30")
	}
	if s.Length == 0 || s.Length > maxObjectBytes {
		return invalid("length", s.Length, "from 1 to 2^47")
	}
	if (s.ElemSize == 0) != (s.Capacity == 0) {
		return invalid("capacity", s.Capacity, "zero exactly when the element size is")
	}
	if hi, lo := bits.Mul64(s.ElemSize, s.Capacity); hi != 0 || lo > s.Length {
		return invalid("capacity", s.Capacity, "at most length over element size")
	}
	return nil
}

func invalid(field string, got, want any) *Error {
	return &Error{Field: field, Got: got, Want: want, Err: syscall.EINVAL}
}

func inSection(i int, err error) error {
	if e, ok := err.(*Error); ok {
		e.Field = fmt.Sprintf("section %d: %s", i, e.Field)
	}
	return err
}

func alignUp(n, align uint64) uint64 { return (n + align - 1) &^ (align - 1) }

// UUID names one object, boot or process incarnation.
type UUID [16]byte

// NewUUID returns a random UUID (version 4).
func NewUUID() UUID {
	var u UUID
	_, _ = rand.Read(u[:]) // never fails: the program is ended instead
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return u
}

// String returns the usual form, 8-4-4-4-12 hexadecimal digits.
func (u UUID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], u[0:4])
	hex.Encode(b[9:13], u[4:6])
	hex.Encode(b[14:18], u[6:8])
	hex.Encode(b[19:23], u[8:10])
	hex.Encode(b[24:36], u[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// parseUUID reads the form that String prints; ok is false for anything else.
func parseUUID(s string) (u UUID, ok bool) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return UUID{}, false
	}
	digits := s[0:8] + s[9:13] + s[14:18] + s[19:23] + s[24:36]
	if _, err := hex.Decode(u[:], []byte(digits)); err != nil {
		return UUID{}, false
	}
	return u, true
}
