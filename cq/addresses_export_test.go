package cq

import (
	"encoding/binary"
	"hash/crc32"
)

// What tests need to scribble over address vectors.
const (
	SectAddrWords = sectAddrWords
	SectAddrRows  = sectAddrRows
	SectAddrIndex = sectAddrIndex
	AddrRowUsed   = addrRowUsed
)

// AddressCells returns how many cells of the index are in use.
func AddressCells(v *AddressVector) (n int) {
	for i := range v.table.index {
		if v.table.index[i].Load() != 0 {
			n++
		}
	}
	return n
}

// AddressHome returns the cell of the index that the search for an address begins at.
func AddressHome(v *AddressVector, raw []byte) uint32 {
	return v.table.key(raw).hash & v.table.mask
}

// SealDescriptor makes the magic and the checksum of a memory descriptor right.
func SealDescriptor(b []byte) []byte {
	copy(b, descMagic)
	binary.LittleEndian.PutUint32(b[descSum:], crc32.Checksum(b[:descSum], castagnoli))
	return b
}
