package kind

import (
	"sync/atomic"

	"github.com/shmring/shmring/shm"
)

// Sections of an address vector.
const (
	SectAddrWords shm.SectionKind = 0x140 + iota // owner-written words of the vector
	SectAddrRows                                 // a row an index
	SectAddrIndex                                // from an address to its row
)

// Attributes of an address vector: fixed at creation, under the header's checksum.
const (
	AttrAddrCount = iota
	AttrAddrMaxBytes
	AttrAddrFormat
	AttrAddrLifetime
	AttrAddrUserID
)

const (
	AddrWordsBytes    = 4096
	AddrRowWords      = 4 // of a row, before the address
	AddrMaxCount      = 1 << 22
	AddrLimitBytes    = 256
	AddrIndexPerRow   = 4  // cells of the index for each row: it is never more than a quarter full
	AddrProbes        = 64 // cells that a search looks at; see AddressTable.place
	AddrTries         = 64 // bounds what a writer that stopped half way, or a hostile one, can cost
	AddrRowLengthMask = 1<<16 - 1
	AddrRowUsed       = 1 << 16
	AddrRowHasID      = 1 << 17
	AddrNotAvail      = ^uint64(0) // no source
)

// AddrWords is the page of an address vector: the owner writes, everybody reads.
type AddrWords struct {
	State   atomic.Uint64 // StateOpen or StateClosed
	Changes atomic.Uint64 // grows before each store that moves or removes a cell of the index
	Used    atomic.Uint64 // addresses in the vector
}

// AddressTable is an address vector's memory. A row is
//
//	word 0  sequence: odd while the owner writes the rest
//	word 1  length of the address, used, has a user id
//	word 2  user id
//	word 3  unused
//	word 4… the address, the last word filled up with zeros
//
// and a cell of the index is hash<<32 | row+1, or 0 when it is empty. Rows are the truth: the index
// only says where to look, and whoever follows it compares the row.
type AddressTable struct {
	Words  *AddrWords
	Rows   []atomic.Uint64
	Index  []atomic.Uint64
	Count  int // of rows
	Stride int // words of a row
	Mask   uint32
	Seed   uint64
	Ids    bool // rows can have a user id
	Short  bool // an IPv4 address is what its first eight bytes say
}

func AddrRowBytes(maxBytes int) int { return 8 * (AddrRowWords + maxBytes/8) }

// Addresses is what is fixed when an address vector is created, as its attributes say it.
type Addresses struct {
	Count, MaxBytes  int
	Format, Lifetime uint64
	UserID           bool
}

// AddressBounds are those of an address vector's object.
func AddressBounds() map[int]Bound {
	return map[int]Bound{AttrAddrCount: {Least: 1, Most: AddrMaxCount, PowerOf2: true},
		AttrAddrMaxBytes: {Least: 8, Most: AddrLimitBytes},
		AttrAddrFormat:   {Least: FormatSockaddr, Most: FormatOpaque},
		AttrAddrLifetime: {Most: MostLifetime}, AttrAddrUserID: {Most: 1}}
}

// Spec is the layout of an address vector.
func (a Addresses) Spec(name string) shm.Spec {
	row, cells := AddrRowBytes(a.MaxBytes), AddrIndexPerRow*a.Count
	s := shm.Spec{Kind: shm.KindAddresses, Name: name, Sections: []shm.Section{
		{Kind: SectAddrWords, Length: AddrWordsBytes, ElemSize: AddrWordsBytes, Capacity: 1,
			LayoutHash: LayoutVersion},
		{Kind: SectAddrRows, Length: uint64(row * a.Count), ElemSize: uint64(row),
			Capacity: uint64(a.Count), LayoutHash: LayoutVersion},
		{Kind: SectAddrIndex, Length: uint64(8 * cells), ElemSize: 8, Capacity: uint64(cells),
			LayoutHash: LayoutVersion},
	}}
	s.Attrs[AttrAddrCount] = uint64(a.Count)
	s.Attrs[AttrAddrMaxBytes] = uint64(a.MaxBytes)
	s.Attrs[AttrAddrFormat] = a.Format
	s.Attrs[AttrAddrLifetime] = a.Lifetime
	if a.UserID {
		s.Attrs[AttrAddrUserID] = 1
	}
	return s
}

// StoredAddresses returns what an address vector was created with, bounded. What it returns
// beside an error is what the object should be, if its attributes are possible one by one.
func StoredAddresses(op, name string, h shm.Header) (a Addresses, err error) {
	if h.Kind != shm.KindAddresses {
		return a, Refuse(op, name, "kind", h.Kind, shm.KindAddresses, shm.ErrKind)
	}
	damaged := Refuse(op, name, "attributes", h.Attrs, "what CreateAddresses writes", ErrCorrupt)
	if !Within(h, AddressBounds()) {
		return a, damaged
	}
	a = Addresses{Count: int(h.Attrs[AttrAddrCount]), MaxBytes: int(h.Attrs[AttrAddrMaxBytes]),
		Format: h.Attrs[AttrAddrFormat], Lifetime: h.Attrs[AttrAddrLifetime],
		UserID: h.Attrs[AttrAddrUserID] != 0}
	if a.MaxBytes%8 != 0 || LongestAddress(a.Format) > a.MaxBytes {
		return a, damaged
	}
	return a, HasSections(op, name, h, a.Spec(name))
}

// NewAddressTable lays a table over an object that StoredAddresses accepted.
func NewAddressTable(obj *shm.Object, a Addresses) (*AddressTable, error) {
	words, err := WordsOf[AddrWords](obj, SectAddrWords, 0)
	if err != nil {
		return nil, err
	}
	rows, _, err := obj.Section(SectAddrRows, 0)
	if err != nil {
		return nil, err
	}
	index, _, err := obj.Section(SectAddrIndex, 0)
	if err != nil {
		return nil, err
	}
	// The seed differs between vectors, so that who knows one cannot plan collisions in another.
	high, low := UuidWords(obj.Header().UUID)
	return &AddressTable{Words: words, Rows: Overlays[atomic.Uint64](rows),
		Index: Overlays[atomic.Uint64](index), Count: a.Count,
		Stride: AddrRowBytes(a.MaxBytes) / 8, Mask: uint32(AddrIndexPerRow*a.Count - 1),
		Seed: high ^ low, Ids: a.UserID, Short: a.Format != FormatOpaque}, nil
}
