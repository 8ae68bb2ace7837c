package kind

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"sync/atomic"

	"github.com/shmring/shmring/internal/crash"
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
		section(SectAddrWords, 1, AddrWordsBytes), section(SectAddrRows, a.Count, row),
		section(SectAddrIndex, cells, 8)}}
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

// AddressKey is an address as it is searched for and stored.
type AddressKey struct {
	Raw  []byte // the bytes that matter
	Full int    // length of the whole address; what follows raw is zero
	Hash uint32
}

// Key prepares an address. In a sockaddr_in what follows the IP address is padding, which not
// everybody clears.
func (t *AddressTable) Key(raw []byte) AddressKey {
	k := AddressKey{Raw: raw, Full: len(raw)}
	if t.Short && len(raw) == SockaddrIn4Bytes && raw[0] == FamilyIn4 && raw[1] == 0 {
		k.Raw = raw[:8]
	}
	h, rest := t.Seed^uint64(k.Full), k.Raw
	for ; len(rest) >= 16; rest = rest[16:] {
		h = MixWords(h^binary.LittleEndian.Uint64(rest), OddWord1^binary.LittleEndian.Uint64(rest[8:]))
	}
	if len(rest) > 0 {
		at := (len(k.Raw) - len(rest)) / 8
		h = MixWords(h^AddrWord(k.Raw, at), OddWord1^AddrWord(k.Raw, at+1))
	}
	k.Hash = uint32(MixWords(h, OddWord2) >> 32)
	return k
}

// Any words with as many ones as zeros will do.
const (
	OddWord1 = 0x9e3779b97f4a7c15
	OddWord2 = 0xd6e8feb86659fd93
)

func MixWords(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// AddrWord returns the eight bytes from 8*i on, with zeros where raw has ended.
func AddrWord(raw []byte, i int) uint64 {
	rest := raw[min(8*i, len(raw)):]
	if len(rest) >= 8 {
		return binary.LittleEndian.Uint64(rest)
	}
	if len(raw) >= 8 { // the last whole word, less what is in the word before
		return binary.LittleEndian.Uint64(raw[len(raw)-8:]) >> (64 - 8*uint(len(rest)))
	}
	var w uint64
	for j, b := range rest {
		w |= uint64(b) << (8 * j)
	}
	return w
}

// Row returns the words of a row; slot was bounded by the caller.
func (t *AddressTable) Row(slot int) []atomic.Uint64 {
	return t.Rows[slot*t.Stride : (slot+1)*t.Stride : (slot+1)*t.Stride]
}

// Find returns the row of an address and the source that a completion from there has, which is its
// index or user id. It is exact while the owner works: an entry that is moved is stored at its new
// place before its old one is used, and `changes` grows before each store, so that during a search
// that saw it stand still at most one store took effect, which hides nothing.
func (t *AddressTable) Find(k AddressKey) (slot int, src uint64, ok bool) {
	for range AddrTries {
		changes := t.Words.Changes.Load()
		at := k.Hash & t.Mask
		for range AddrProbes {
			cell := t.Index[at].Load()
			if cell == 0 {
				break
			}
			if uint32(cell>>32) == k.Hash {
				if s := uint32(cell) - 1; s < uint32(t.Count) {
					if src, ok = t.Match(int(s), k); ok {
						return int(s), src, true
					}
				}
			}
			at = (at + 1) & t.Mask
		}
		if t.Words.Changes.Load() == changes {
			break
		}
	}
	return -1, AddrNotAvail, false
}

// Match compares an address with a row.
func (t *AddressTable) Match(slot int, k AddressKey) (src uint64, ok bool) {
	row := t.Row(slot)
	for range AddrTries {
		seq := row[0].Load()
		if seq&1 != 0 {
			continue
		}
		info := row[1].Load()
		same := info&AddrRowUsed != 0 && int(info&AddrRowLengthMask) == k.Full && SameWords(row, k.Raw)
		id := row[2].Load()
		if row[0].Load() != seq {
			continue
		}
		if t.Ids && info&AddrRowHasID != 0 {
			return uint64(id), same
		}
		return uint64(slot), same
	}
	return AddrNotAvail, false
}

// SameWords compares an address with the words of a row.
func SameWords(row []atomic.Uint64, raw []byte) bool {
	words, i := row[AddrRowWords:], 0
	if 8*len(words) < len(raw) {
		return false
	}
	for ; len(raw)-8*i >= 8; i++ {
		if words[i].Load() != binary.LittleEndian.Uint64(raw[8*i:]) {
			return false
		}
	}
	return len(raw) == 8*i || words[i].Load() == AddrWord(raw, i)
}

// Load copies as much of a row's address as dst holds and returns its whole length. A row that is
// not used, or being written for as long as we look, is not there.
func (t *AddressTable) Load(slot int, dst []byte) (n int, ok bool) {
	row := t.Row(slot)
	room := 8 * (len(row) - AddrRowWords)
	for range AddrTries {
		seq := row[0].Load()
		if seq&1 != 0 {
			continue
		}
		info := row[1].Load()
		n = int(info & AddrRowLengthMask)
		ok = info&AddrRowUsed != 0 && n > 0 && n <= room
		if ok {
			for at := 0; at < min(n, len(dst)); at += 8 {
				var w [8]byte
				binary.LittleEndian.PutUint64(w[:], row[AddrRowWords+at/8].Load())
				copy(dst[at:min(n, len(dst))], w[:])
			}
		}
		if row[0].Load() == seq {
			return n, ok
		}
	}
	return 0, false
}

// The rest is for the owner, one goroutine at a time.

// Fill writes a row that is not in the index.
func (t *AddressTable) Fill(slot int, k AddressKey, id uint64, hasID bool) {
	row := t.Row(slot)
	seq := row[0].Load() | 1
	row[0].Store(seq)
	crash.At(crash.AddressFilling)
	for i := range row[AddrRowWords:] {
		row[AddrRowWords+i].Store(AddrWord(k.Raw, i))
	}
	info := uint64(k.Full) | AddrRowUsed
	if hasID {
		info |= AddrRowHasID
	}
	row[2].Store(uint64(id))
	row[1].Store(info)
	row[0].Store(seq + 1)
}

// Clear marks a row as free.
func (t *AddressTable) Clear(slot int) {
	row := t.Row(slot)
	seq := row[0].Load() | 1
	row[0].Store(seq)
	row[1].Store(0)
	row[0].Store(seq + 1)
}

// SetID gives a row's address a source of the user's choice. The address stays readable: the id is
// one word, and the mark that it counts comes after it.
func (t *AddressTable) SetID(slot int, id uint64) {
	row := t.Row(slot)
	row[2].Store(uint64(id))
	row[1].Store(row[1].Load() | AddrRowHasID)
}

// Place enters a row in the index. With a quarter of the cells in use a run of AddrProbes taken
// ones does not happen by chance (about once in 10^17); whoever provokes one gets false.
func (t *AddressTable) Place(slot int, hash uint32) bool {
	at := hash & t.Mask
	for range AddrProbes {
		if t.Index[at].Load() == 0 {
			t.Index[at].Store(uint64(hash)<<32 | uint64(slot+1))
			return true
		}
		at = (at + 1) & t.Mask
	}
	return false
}

// Displace takes a row out of the index.
func (t *AddressTable) Displace(slot int, hash uint32) {
	at := hash & t.Mask
	for range AddrProbes {
		cell := t.Index[at].Load()
		if cell == uint64(hash)<<32|uint64(slot+1) {
			t.Erase(at)
			return
		}
		at = (at + 1) & t.Mask
	}
}

// Erase empties a cell. Cells behind it move up, so that searches may end at the first empty one.
func (t *AddressTable) Erase(hole uint32) {
	at := hole
	for range t.Index {
		at = (at + 1) & t.Mask
		cell := t.Index[at].Load()
		if cell == 0 {
			break
		}
		home := uint32(cell>>32) & t.Mask
		if (at-home)&t.Mask >= (at-hole)&t.Mask {
			t.Words.Changes.Add(1)
			t.Index[hole].Store(cell)
			crash.At(crash.AddressMoved)
			hole = at
		}
	}
	t.Words.Changes.Add(1)
	t.Index[hole].Store(0)
}

// Discard frees the rows that no owner can have written: those with what is no address of the
// format, or with bytes that no search for it finds. It comes before repair, which believes what a
// row says.
func (t *AddressTable) Discard(buf []byte, format uint64) {
	for slot := range t.Count {
		n, ok := t.Load(slot, buf)
		if !ok {
			continue
		}
		if _, found := t.Match(slot, t.Key(buf[:n])); !found || !IsAddress(format, buf[:n]) {
			t.Clear(slot)
		}
	}
}

// Repair makes the table whole that a former owner may have left in the middle of a change, and
// calls used for every row that holds an address. buf has room for the longest one.
func (t *AddressTable) Repair(buf []byte, used func(slot int)) {
	wrong := t.WrongCells(buf)
	const few = 4 // a death leaves one
	if len(wrong) > few {
		for i := range t.Index {
			t.Words.Changes.Add(1)
			t.Index[i].Store(0)
		}
	} else {
		for i := len(wrong) - 1; i >= 0; i-- {
			t.Erase(wrong[i])
		}
	}
	n := uint64(0)
	for slot := range t.Count {
		length, ok := t.Load(slot, buf)
		if !ok {
			t.Clear(slot)
			continue
		}
		k := t.Key(buf[:length])
		if at, _, ok := t.Find(k); ok && at != slot || !ok && !t.Place(slot, k.Hash) {
			t.Clear(slot) // the address is there twice, which only damage can cause
			continue
		}
		n++
		used(slot)
	}
	t.Words.Used.Store(n)
}

// WrongCells returns the cells, at most a few more than can be mended, that do not lead to a row of
// their own. Of two that lead to one, the second is wrong.
func (t *AddressTable) WrongCells(buf []byte) (wrong []uint32) {
	const enough = 16
	for i := range t.Index {
		cell := t.Index[i].Load()
		if cell == 0 {
			continue
		}
		if s := uint32(cell) - 1; s < uint32(t.Count) {
			if n, ok := t.Load(int(s), buf); ok {
				k := t.Key(buf[:n])
				if k.Hash == uint32(cell>>32) && t.First(k, int(s)) == uint32(i) {
					continue
				}
			}
		}
		if wrong = append(wrong, uint32(i)); len(wrong) == enough {
			break
		}
	}
	return wrong
}

// First returns the first cell on the way that leads to a row, or one that no cell is.
func (t *AddressTable) First(k AddressKey, slot int) uint32 {
	at := k.Hash & t.Mask
	for range AddrProbes {
		cell := t.Index[at].Load()
		if cell == 0 {
			break
		}
		if cell == uint64(k.Hash)<<32|uint64(slot+1) {
			return at
		}
		at = (at + 1) & t.Mask
	}
	return ^uint32(0)
}

// Formats of the addresses of a vector.
const (
	FormatSockaddr = 1 + iota // sockaddr_in or sockaddr_in6
	FormatSockaddrIn
	FormatSockaddrIn6
	FormatOpaque
)

const (
	SockaddrIn4Bytes = 16
	SockaddrIn6Bytes = 28
	FamilyIn4        = 2 // AF_INET
	FamilyIn6        = 10
)

// LongestAddress returns the length of a format's longest address, 0 if it has none.
func LongestAddress(format uint64) int {
	switch format {
	case FormatSockaddrIn:
		return SockaddrIn4Bytes
	case FormatSockaddr, FormatSockaddrIn6:
		return SockaddrIn6Bytes
	}
	return 0
}

// IsAddress reports whether bytes are an address of a format that somebody can send to.
func IsAddress(format uint64, raw []byte) bool {
	if format == FormatOpaque {
		return len(raw) > 0
	}
	a, ok := SockaddrOf(raw)
	if !ok || format == FormatSockaddrIn && len(raw) != SockaddrIn4Bytes ||
		format == FormatSockaddrIn6 && len(raw) != SockaddrIn6Bytes {
		return false
	}
	return a.Port() != 0 && !a.Addr().IsUnspecified()
}

// SockaddrOf reads a sockaddr_in or sockaddr_in6 of exactly its length.
func SockaddrOf(raw []byte) (a netip.AddrPort, ok bool) {
	if len(raw) < 8 {
		return a, false
	}
	port := binary.BigEndian.Uint16(raw[2:])
	switch family := binary.LittleEndian.Uint16(raw); {
	case family == FamilyIn4 && len(raw) == SockaddrIn4Bytes:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port), true
	case family == FamilyIn6 && len(raw) == SockaddrIn6Bytes:
		ip := netip.AddrFrom16([16]byte(raw[8:24]))
		if zone := binary.LittleEndian.Uint32(raw[24:]); zone != 0 {
			ip = ip.WithZone(strconv.FormatUint(uint64(zone), 10))
		}
		return netip.AddrPortFrom(ip, port), true
	}
	return a, false
}
