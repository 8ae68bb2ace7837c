package demo

import (
	"encoding/binary"
	"hash/crc32"
)

// A payload is a sequence number, a checksum over everything else, and a length and bytes that
// follow from the number, so that a byte out of place is noticed even if its neighbours move too.
//
//	0  sequence number
//	8  CRC32C of the payload with this field zero
//	12 length of the payload
//	16 pattern
const (
	payloadMinBytes = 64
	payloadMaxBytes = 1024
	payloadSumOff   = 8
	payloadLenOff   = 12
	payloadHead     = 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// payloadLen spreads lengths over the whole range.
func payloadLen(seq uint64) int {
	return payloadMinBytes + int(mix(seq)%(payloadMaxBytes-payloadMinBytes+1))
}

// mix is a 64-bit finaliser: neighbouring numbers give unrelated values.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// makePayload writes payload seq to b, which has room for payloadMaxBytes, and returns its length.
func makePayload(b []byte, seq uint64) int {
	n := payloadLen(seq)
	le := binary.LittleEndian
	le.PutUint64(b, seq)
	le.PutUint32(b[payloadSumOff:], 0)
	le.PutUint32(b[payloadLenOff:], uint32(n))
	x := mix(seq + 1)
	i := payloadHead
	for ; i+8 <= n; i += 8 {
		le.PutUint64(b[i:], x)
		x = x*6364136223846793005 + 1442695040888963407
	}
	for ; i < n; i++ {
		b[i] = byte(i)
	}
	le.PutUint32(b[payloadSumOff:], crc32.Checksum(b[:n], castagnoli))
	return n
}

var zeroSum [4]byte

// checkPayload returns the sequence number of a payload and whether every byte is as it was made.
// It reads b where it lies and does not change it.
func checkPayload(b []byte) (seq uint64, ok bool) {
	if len(b) < payloadMinBytes || len(b) > payloadMaxBytes {
		return 0, false
	}
	le := binary.LittleEndian
	seq = le.Uint64(b)
	sum := crc32.Update(0, castagnoli, b[:payloadSumOff])
	sum = crc32.Update(sum, castagnoli, zeroSum[:])
	sum = crc32.Update(sum, castagnoli, b[payloadSumOff+4:])
	return seq, sum == le.Uint32(b[payloadSumOff:]) &&
		int(le.Uint32(b[payloadLenOff:])) == len(b) && payloadLen(seq) == len(b)
}

// tally counts which payloads arrived.
type tally struct {
	seen       []uint64
	total      uint64
	Arrived    uint64 // distinct and intact
	Corrupt    uint64
	Duplicate  uint64
	Unexpected uint64 // intact, but never sent
}

func newTally(total uint64) *tally {
	return &tally{seen: make([]uint64, (total+63)/64), total: total}
}

// add takes one payload.
func (t *tally) add(b []byte) (seq uint64, fresh bool) {
	seq, ok := checkPayload(b)
	switch {
	case !ok:
		t.Corrupt++
	case seq >= t.total:
		t.Unexpected++
	case t.seen[seq/64]>>(seq%64)&1 != 0:
		t.Duplicate++
	default:
		t.seen[seq/64] |= 1 << (seq % 64)
		t.Arrived++
		return seq, true
	}
	return seq, false
}
