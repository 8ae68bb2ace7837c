package cq

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/shmring/shmring/shm"
)

// Sections of an address vector.
const (
	sectAddrWords shm.SectionKind = 0x140 + iota // owner-written words of the vector
	sectAddrRows                                 // a row an index
	sectAddrIndex                                // from an address to its row
)

// Attributes of an address vector: fixed at creation, under the header's checksum.
const (
	attrAddrCount = iota
	attrAddrMaxBytes
	attrAddrFormat
	attrAddrLifetime
	attrAddrUserID
)

const (
	addrWordsBytes    = 4096
	addrRowWords      = 4 // of a row, before the address
	addrDefaultCount  = 1024
	addrMaxCount      = 1 << 22
	addrDefaultBytes  = 32 // a sockaddr_in6 has 28
	addrLimitBytes    = 256
	addrIndexPerRow   = 4  // cells of the index for each row: it is never more than a quarter full
	addrProbes        = 64 // cells that a search looks at; see addrTable.place
	addrTries         = 64 // bounds what a writer that stopped half way, or a hostile one, can cost
	addrRowLengthMask = 1<<16 - 1
	addrRowUsed       = 1 << 16
	addrRowHasID      = 1 << 17
)

// addrWords is the page of an address vector: the owner writes, everybody reads.
type addrWords struct {
	state   atomic.Uint64 // stateOpen or stateClosed
	changes atomic.Uint64 // grows before each store that moves or removes a cell of the index
	used    atomic.Uint64 // addresses in the vector
}

// addrTable is an address vector's memory. A row is
//
//	word 0  sequence: odd while the owner writes the rest
//	word 1  length of the address, used, has a user id
//	word 2  user id
//	word 3  unused
//	word 4… the address, the last word filled up with zeros
//
// and a cell of the index is hash<<32 | row+1, or 0 when it is empty. Rows are the truth: the index
// only says where to look, and whoever follows it compares the row.
type addrTable struct {
	words  *addrWords
	rows   []atomic.Uint64
	index  []atomic.Uint64
	count  int // of rows
	stride int // words of a row
	mask   uint32
	seed   uint64
	ids    bool // rows can have a user id
	short  bool // an IPv4 address is what its first eight bytes say
}

func addrRowBytes(maxBytes int) int { return 8 * (addrRowWords + maxBytes/8) }

// resolve checks o and fills in what was left to us.
func (o AddressOptions) resolve(op, name string) (AddressOptions, error) {
	bad := func(field string, got, want any) (AddressOptions, error) {
		return o, refuse(op, name, field, got, want, ErrInvalid)
	}
	if o.Count < 0 || o.Count > addrMaxCount {
		return bad("Count", o.Count, fmt.Sprintf("0 to %d", addrMaxCount))
	}
	if o.Count == 0 {
		o.Count = addrDefaultCount
	}
	o.Count = 1 << bits.Len(uint(o.Count-1))
	if o.AddrMaxBytes < 0 || o.AddrMaxBytes > addrLimitBytes {
		return bad("AddrMaxBytes", o.AddrMaxBytes, fmt.Sprintf("0 to %d", addrLimitBytes))
	}
	if o.AddrMaxBytes == 0 {
		o.AddrMaxBytes = addrDefaultBytes
	}
	o.AddrMaxBytes = (o.AddrMaxBytes + 7) &^ 7
	if o.Format > AddrOpaque {
		return bad("Format", uint32(o.Format), "one of the formats")
	}
	if o.Format == AddrUnspec {
		o.Format = AddrSockaddr
	}
	if n := o.Format.bytes(); n > o.AddrMaxBytes {
		return bad("AddrMaxBytes", o.AddrMaxBytes, fmt.Sprintf("at least %d for %v", n, o.Format))
	}
	if o.Lifetime > Persistent {
		return bad("Lifetime", uint32(o.Lifetime), "Ephemeral or Persistent")
	}
	return o, nil
}

func (o AddressOptions) spec(name string) shm.Spec {
	row, cells := addrRowBytes(o.AddrMaxBytes), addrIndexPerRow*o.Count
	s := shm.Spec{Kind: shm.KindAddresses, Name: name, Sections: []shm.Section{
		{Kind: sectAddrWords, Length: addrWordsBytes, ElemSize: addrWordsBytes, Capacity: 1,
			LayoutHash: layoutVersion},
		{Kind: sectAddrRows, Length: uint64(row * o.Count), ElemSize: uint64(row),
			Capacity: uint64(o.Count), LayoutHash: layoutVersion},
		{Kind: sectAddrIndex, Length: uint64(8 * cells), ElemSize: 8, Capacity: uint64(cells),
			LayoutHash: layoutVersion},
	}}
	s.Attrs[attrAddrCount] = uint64(o.Count)
	s.Attrs[attrAddrMaxBytes] = uint64(o.AddrMaxBytes)
	s.Attrs[attrAddrFormat] = uint64(o.Format)
	s.Attrs[attrAddrLifetime] = uint64(o.Lifetime)
	if o.UserID {
		s.Attrs[attrAddrUserID] = 1
	}
	return s
}

// storedAddresses returns the options that an address vector was created with, bounded.
func storedAddresses(op, name string, h shm.Header) (AddressOptions, error) {
	if h.Kind != shm.KindAddresses {
		return AddressOptions{}, refuse(op, name, "kind", h.Kind, shm.KindAddresses, shm.ErrKind)
	}
	o := AddressOptions{Count: int(h.Attrs[attrAddrCount]),
		AddrMaxBytes: int(h.Attrs[attrAddrMaxBytes]), Format: AddressFormat(h.Attrs[attrAddrFormat]),
		Lifetime: Lifetime(h.Attrs[attrAddrLifetime]), UserID: h.Attrs[attrAddrUserID] != 0}
	damaged := refuse(op, name, "attributes", h.Attrs, "what CreateAddresses writes", ErrCorrupt)
	if o.Count < 1 || o.AddrMaxBytes < 1 {
		return o, damaged
	}
	r, err := o.resolve(op, name)
	want := o.spec(name)
	if err != nil || r.Count != o.Count || r.AddrMaxBytes != o.AddrMaxBytes ||
		r.Format != o.Format || h.Attrs != want.Attrs {
		return o, damaged
	}
	return o, hasSections(op, name, h, want)
}

// newAddrTable lays a table over an object that storedAddresses accepted.
func newAddrTable(obj *shm.Object, o AddressOptions) (*addrTable, error) {
	words, err := wordsOf[addrWords](obj, sectAddrWords, 0)
	if err != nil {
		return nil, err
	}
	rows, _, err := obj.Section(sectAddrRows, 0)
	if err != nil {
		return nil, err
	}
	index, _, err := obj.Section(sectAddrIndex, 0)
	if err != nil {
		return nil, err
	}
	// The seed differs between vectors, so that who knows one cannot plan collisions in another.
	high, low := uuidWords(obj.Header().UUID)
	return &addrTable{words: words, rows: overlays[atomic.Uint64](rows),
		index: overlays[atomic.Uint64](index), count: o.Count,
		stride: addrRowBytes(o.AddrMaxBytes) / 8, mask: uint32(addrIndexPerRow*o.Count - 1),
		seed: high ^ low, ids: o.UserID, short: o.Format != AddrOpaque}, nil
}
