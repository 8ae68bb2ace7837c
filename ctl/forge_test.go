package ctl_test

import (
	"encoding/binary"
	"hash/crc32"
)

// seal makes a header of any content pass its checksum.
func seal(image []byte) []byte {
	sum := crc32.Checksum(image[:0x980], crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(image[0x980:], sum)
	return image
}

// forge makes a copy of an object that claims another size.
func forge(image []byte, bytes uint64) []byte {
	out := append([]byte{}, image...)
	binary.LittleEndian.PutUint64(out[0x18:], bytes)
	return seal(out)
}
