package endpoint

import "encoding/binary"

// ShimBytes is the size of the header that Config.RemoteData puts in front of every payload. All
// numbers are in network byte order:
//
//	0  magic, 0x5368524d
//	4  version, 0
//	5  flags: bit 0 says that there is data, the others are 0
//	6  zero
//	8  data
const ShimBytes = 16

const (
	shimMagic   = 0x5368524d // "ShRM"
	shimHasData = 1
)

func putShim(b []byte, has bool, data uint64) {
	_ = b[ShimBytes-1]
	be := binary.BigEndian
	be.PutUint32(b, shimMagic)
	be.PutUint32(b[4:], 0)
	if has {
		b[5] = shimHasData
	} else {
		data = 0
	}
	be.PutUint64(b[8:], data)
}

// readShim reports false for a payload that does not begin with a header of this version.
func readShim(b []byte) (data uint64, has, ok bool) {
	if len(b) < ShimBytes || binary.BigEndian.Uint32(b) != shimMagic || b[4] != 0 ||
		b[5]&^shimHasData != 0 {
		return 0, false, false
	}
	return binary.BigEndian.Uint64(b[8:]), b[5]&shimHasData != 0, true
}
