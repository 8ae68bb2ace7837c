package cq

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"github.com/shmring/shmring/internal/crash"
)

// addrKey is an address as it is searched for and stored.
type addrKey struct {
	raw  []byte // the bytes that matter
	full int    // length of the whole address; what follows raw is zero
	hash uint32
}

// key prepares an address. In a sockaddr_in what follows the IP address is padding, which not
// everybody clears.
func (t *addrTable) key(raw []byte) addrKey {
	k := addrKey{raw: raw, full: len(raw)}
	if t.short && len(raw) == sockaddrIn4Bytes && raw[0] == familyIn4 && raw[1] == 0 {
		k.raw = raw[:8]
	}
	h, rest := t.seed^uint64(k.full), k.raw
	for ; len(rest) >= 16; rest = rest[16:] {
		h = mixWords(h^binary.LittleEndian.Uint64(rest), oddWord1^binary.LittleEndian.Uint64(rest[8:]))
	}
	if len(rest) > 0 {
		at := (len(k.raw) - len(rest)) / 8
		h = mixWords(h^addrWord(k.raw, at), oddWord1^addrWord(k.raw, at+1))
	}
	k.hash = uint32(mixWords(h, oddWord2) >> 32)
	return k
}

// Any words with as many ones as zeros will do.
const (
	oddWord1 = 0x9e3779b97f4a7c15
	oddWord2 = 0xd6e8feb86659fd93
)

func mixWords(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// addrWord returns the eight bytes from 8*i on, with zeros where raw has ended.
func addrWord(raw []byte, i int) uint64 {
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

// row returns the words of a row; slot was bounded by the caller.
func (t *addrTable) row(slot int) []atomic.Uint64 {
	return t.rows[slot*t.stride : (slot+1)*t.stride : (slot+1)*t.stride]
}

// find returns the row of an address and the source that a completion from there has, which is its
// index or user id. It is exact while the owner works: an entry that is moved is stored at its new
// place before its old one is used, and `changes` grows before each store, so that during a search
// that saw it stand still at most one store took effect, which hides nothing.
func (t *addrTable) find(k addrKey) (slot int, src Addr, ok bool) {
	for range addrTries {
		changes := t.words.changes.Load()
		at := k.hash & t.mask
		for range addrProbes {
			cell := t.index[at].Load()
			if cell == 0 {
				break
			}
			if uint32(cell>>32) == k.hash {
				if s := uint32(cell) - 1; s < uint32(t.count) {
					if src, ok = t.match(int(s), k); ok {
						return int(s), src, true
					}
				}
			}
			at = (at + 1) & t.mask
		}
		if t.words.changes.Load() == changes {
			break
		}
	}
	return -1, AddrNotAvail, false
}

// match compares an address with a row.
func (t *addrTable) match(slot int, k addrKey) (src Addr, ok bool) {
	row := t.row(slot)
	for range addrTries {
		seq := row[0].Load()
		if seq&1 != 0 {
			continue
		}
		info := row[1].Load()
		same := info&addrRowUsed != 0 && int(info&addrRowLengthMask) == k.full && sameWords(row, k.raw)
		id := row[2].Load()
		if row[0].Load() != seq {
			continue
		}
		if t.ids && info&addrRowHasID != 0 {
			return Addr(id), same
		}
		return Addr(slot), same
	}
	return AddrNotAvail, false
}

// sameWords compares an address with the words of a row.
func sameWords(row []atomic.Uint64, raw []byte) bool {
	words, i := row[addrRowWords:], 0
	if 8*len(words) < len(raw) {
		return false
	}
	for ; len(raw)-8*i >= 8; i++ {
		if words[i].Load() != binary.LittleEndian.Uint64(raw[8*i:]) {
			return false
		}
	}
	return len(raw) == 8*i || words[i].Load() == addrWord(raw, i)
}

// load copies as much of a row's address as dst holds and returns its whole length. A row that is
// not used, or being written for as long as we look, is not there.
func (t *addrTable) load(slot int, dst []byte) (n int, ok bool) {
	row := t.row(slot)
	room := 8 * (len(row) - addrRowWords)
	for range addrTries {
		seq := row[0].Load()
		if seq&1 != 0 {
			continue
		}
		info := row[1].Load()
		n = int(info & addrRowLengthMask)
		ok = info&addrRowUsed != 0 && n > 0 && n <= room
		if ok {
			for at := 0; at < min(n, len(dst)); at += 8 {
				var w [8]byte
				binary.LittleEndian.PutUint64(w[:], row[addrRowWords+at/8].Load())
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

// fill writes a row that is not in the index.
func (t *addrTable) fill(slot int, k addrKey, id Addr, hasID bool) {
	row := t.row(slot)
	seq := row[0].Load() | 1
	row[0].Store(seq)
	crash.At(crash.AddressFilling)
	for i := range row[addrRowWords:] {
		row[addrRowWords+i].Store(addrWord(k.raw, i))
	}
	info := uint64(k.full) | addrRowUsed
	if hasID {
		info |= addrRowHasID
	}
	row[2].Store(uint64(id))
	row[1].Store(info)
	row[0].Store(seq + 1)
}

// clear marks a row as free.
func (t *addrTable) clear(slot int) {
	row := t.row(slot)
	seq := row[0].Load() | 1
	row[0].Store(seq)
	row[1].Store(0)
	row[0].Store(seq + 1)
}

// setID gives a row's address a source of the user's choice. The address stays readable: the id is
// one word, and the mark that it counts comes after it.
func (t *addrTable) setID(slot int, id Addr) {
	row := t.row(slot)
	row[2].Store(uint64(id))
	row[1].Store(row[1].Load() | addrRowHasID)
}

// place enters a row in the index. With a quarter of the cells in use a run of addrProbes taken
// ones does not happen by chance (about once in 10^17); whoever provokes one gets false.
func (t *addrTable) place(slot int, hash uint32) bool {
	at := hash & t.mask
	for range addrProbes {
		if t.index[at].Load() == 0 {
			t.index[at].Store(uint64(hash)<<32 | uint64(slot+1))
			return true
		}
		at = (at + 1) & t.mask
	}
	return false
}

// displace takes a row out of the index.
func (t *addrTable) displace(slot int, hash uint32) {
	at := hash & t.mask
	for range addrProbes {
		cell := t.index[at].Load()
		if cell == uint64(hash)<<32|uint64(slot+1) {
			t.erase(at)
			return
		}
		at = (at + 1) & t.mask
	}
}

// erase empties a cell. Cells behind it move up, so that searches may end at the first empty one.
func (t *addrTable) erase(hole uint32) {
	at := hole
	for range t.index {
		at = (at + 1) & t.mask
		cell := t.index[at].Load()
		if cell == 0 {
			break
		}
		home := uint32(cell>>32) & t.mask
		if (at-home)&t.mask >= (at-hole)&t.mask {
			t.words.changes.Add(1)
			t.index[hole].Store(cell)
			crash.At(crash.AddressMoved)
			hole = at
		}
	}
	t.words.changes.Add(1)
	t.index[hole].Store(0)
}

// discard frees the rows that no owner can have written: those with what is no address of the
// format, or with bytes that no search for it finds. It comes before repair, which believes what a
// row says.
func (t *addrTable) discard(buf []byte, format AddressFormat) {
	for slot := range t.count {
		n, ok := t.load(slot, buf)
		if !ok {
			continue
		}
		if _, found := t.match(slot, t.key(buf[:n])); !found || format.check(buf[:n]) != nil {
			t.clear(slot)
		}
	}
}

// repair makes the table whole that a former owner may have left in the middle of a change, and
// calls used for every row that holds an address. buf has room for the longest one.
func (t *addrTable) repair(buf []byte, used func(slot int)) {
	wrong := t.wrongCells(buf)
	const few = 4 // a death leaves one
	if len(wrong) > few {
		for i := range t.index {
			t.words.changes.Add(1)
			t.index[i].Store(0)
		}
	} else {
		for i := len(wrong) - 1; i >= 0; i-- {
			t.erase(wrong[i])
		}
	}
	n := uint64(0)
	for slot := range t.count {
		length, ok := t.load(slot, buf)
		if !ok {
			t.clear(slot)
			continue
		}
		k := t.key(buf[:length])
		if at, _, ok := t.find(k); ok && at != slot || !ok && !t.place(slot, k.hash) {
			t.clear(slot) // the address is there twice, which only damage can cause
			continue
		}
		n++
		used(slot)
	}
	t.words.used.Store(n)
}

// wrongCells returns the cells, at most a few more than can be mended, that do not lead to a row of
// their own. Of two that lead to one, the second is wrong.
func (t *addrTable) wrongCells(buf []byte) (wrong []uint32) {
	const enough = 16
	for i := range t.index {
		cell := t.index[i].Load()
		if cell == 0 {
			continue
		}
		if s := uint32(cell) - 1; s < uint32(t.count) {
			if n, ok := t.load(int(s), buf); ok {
				k := t.key(buf[:n])
				if k.hash == uint32(cell>>32) && t.first(k, int(s)) == uint32(i) {
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

// first returns the first cell on the way that leads to a row, or one that no cell is.
func (t *addrTable) first(k addrKey, slot int) uint32 {
	at := k.hash & t.mask
	for range addrProbes {
		cell := t.index[at].Load()
		if cell == 0 {
			break
		}
		if cell == uint64(k.hash)<<32|uint64(slot+1) {
			return at
		}
		at = (at + 1) & t.mask
	}
	return ^uint32(0)
}
