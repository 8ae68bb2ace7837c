package bench

// The memory that the processes map holds many areas, used in turn: which physical pages a ring has
// decides how its lines meet in the caches and made rounds that were else alike differ by a third,
// the same way for as long as the memory was kept. Both rounds of a pair use one area.
//
// The offsets are those within an area. What the rivals use of them is repeated in
// testdata/rivals/bench.h; a test compares the two.
const (
	areaBytes = 1 << 20
	areas     = 32
	barrier0  = 0 // a word per role: the last step of the round that it reached
	barrier1  = 128
	probePing = 256 // the two lines of the placement probe
	probePong = 384
	word0     = 512 // futex words of the rivals
	word1     = 640
	ring0     = 64 << 10 // role 0 writes, role 1 reads
	ring1     = 512 << 10
	ringTail  = 0 // within a ring
	ringHead  = 128
	ringRow   = 256 // the bell's words, only ours
	ringArm   = 384
	ringHints = 512
	ringSlots = 4096
	capacity  = 4096
	slotWords = 8
)

// Descriptors that every child inherits.
const (
	memoryFD = 3
	eventFD0 = 4 // wakes role 0
	eventFD1 = 5
	socketFD = 6 // role 0's end of a socket pair, role 1's follows; only our children use it
)

const (
	settleNs    = 20_000_000
	thinkNs     = 30_000 // before a wake, so that whoever is woken sleeps
	probeTrips  = 64
	probeBursts = 5
)

// slot is what both sides send: one cache line, written and read in place.
type slot [slotWords]uint64

// steps is how many barrier steps a round takes at most.
const steps = 8

// checksum is what adding up the words of count messages from index start gives, modulo 2^64, if
// none was lost, repeated or read before it was written. Message s carries s, 0x402, 64,
// 2^48 + 2^11 s, -1-s, s + 0x7a67, 3 and 2^32 s + 1.
func checksum(start, count uint64) uint64 {
	var indices uint64 // sum of s over the messages
	if count%2 == 0 {
		indices = count / 2 * (2*start + count - 1)
	} else {
		indices = count * (start + (count-1)/2)
	}
	return indices*(1+1<<11+1<<32) + count*(0x402+64+1<<48+0x7a67+3)
}

// fill and sum are the work per message, word for word that of testdata/rivals/ring.c: the eight
// words of a completion are written in place and added up in place.

func fill(span []slot, s uint64) {
	for i := range span {
		w := &span[i]
		w[0] = s
		w[1] = 0x0402
		w[2] = 64
		w[3] = 1<<48 + s<<11
		w[4] = ^s
		w[5] = s + 0x7a67
		w[6] = 3
		w[7] = s<<32 + 1
		s++
	}
}

func sum(span []slot) (total uint64) {
	for i := range span {
		w := &span[i]
		total += ((w[0] + w[1]) + (w[2] + w[3])) + ((w[4] + w[5]) + (w[6] + w[7]))
	}
	return total
}
