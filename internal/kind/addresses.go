package kind

import (
	"fmt"
	"sync/atomic"

	"github.com/shmring/shmring/shm"
)

// Sections of an address vector.
const (
	SectAddrWords shm.SectionKind = 0x140 + iota // owner-written words of the vector
	SectAddrRows                                 // a row an index
	SectAddrIndex                                // from an address to its row
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

var addressCodec = codec[Addresses]{
	{Attribute{"count", Bound{Least: 1, Most: AddrMaxCount, PowerOf2: true}, "rows"},
		func(a *Addresses) any { return &a.Count }},
	{Attribute{"address bytes", Bound{Least: 8, Most: AddrLimitBytes, Step: 8},
		"of the longest address"}, func(a *Addresses) any { return &a.MaxBytes }},
	{Attribute{"format", Bound{Least: FormatSockaddr, Most: FormatOpaque}, "as cq.AddressFormat"},
		func(a *Addresses) any { return &a.Format }},
	{Attribute{"lifetime", Bound{Most: MostLifetime}, "as cq.Lifetime"},
		func(a *Addresses) any { return &a.Lifetime }},
	{Attribute{"user ids", Bound{Most: 1}, "whether rows can have a source of the user's choice"},
		func(a *Addresses) any { return &a.UserID }},
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
	addressCodec.put(&s, a)
	return s
}

// AddressAttributes describes the attributes of an address vector.
var AddressAttributes = addressCodec.attributes()

// StoredAddresses returns what an address vector was created with, bounded. What it returns
// beside an error is what the object should be, if its attributes are possible one by one.
func StoredAddresses(op, name string, h shm.Header) (a Addresses, err error) {
	if h.Kind != shm.KindAddresses {
		return a, Refuse(op, name, "kind", h.Kind, shm.KindAddresses, shm.ErrKind)
	}
	a, err = addressCodec.take(h)
	if err == nil && LongestAddress(a.Format) > a.MaxBytes {
		err = fmt.Errorf("an address of format %d has %d bytes", a.Format, LongestAddress(a.Format))
	}
	if err != nil {
		return a, Refuse(op, name, "attributes", err, "what CreateAddresses writes", ErrCorrupt)
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
