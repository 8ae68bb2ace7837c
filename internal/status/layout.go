package status

import (
	"strings"

	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// Prefix begins the names of all such objects.
const Prefix = "endpoint-"

const (
	sectInfo     shm.SectionKind = 0x4f464e49 // "INFO"
	sectCounters shm.SectionKind = 0x544e4f43 // "CONT"
	sectWish     shm.SectionKind = 0x48534957 // "WISH"
	sectUpdate   shm.SectionKind = 0x54445055 // "UPDT"
)

// infoWords is what does not change, as it lies in memory.
type infoWords struct {
	NetNS, Index, Queue, Bind, Flags  uint64
	Frames, ChunkBytes, HeadroomBytes uint64
	Rx, Tx, Fill, Comp                uint64
	Port, HasAddr                     uint64
	Addr                              [16]uint8
	UMEM, ReceiveID, TransmitID       [16]uint8
	Interface                         [16]uint8 // NUL-terminated, as all texts
	Receive, Transmit                 [72]uint8
}

const infoLayout = "netns ifindex queue bind flags frames chunk headroom rx tx fill comp port " +
	"has-addr u64, addr umem receive-id transmit-id 16, interface 16, receive transmit 72"

// Bits of Flags.
const (
	flagNeedWakeup = 1 << iota
	flagMultiBuffer
	flagPosted
	flagShared
)

// Words of the update section, which the owner of the object writes. Both are the number of an
// update: the first is stored before its first counter, the second after its last. So counters that
// were loaded between loads of the second and of the first, which are equal, are of one moment; and
// an owner that died in an update left them different.
const (
	updateBegun = iota
	updateEnded
	updateWords
)

// Offsets of the page that tools write.
const (
	wishGeneration = 0
	wishID         = 8 // two words
	wishBytes      = 24
)

func spec(id shm.UUID) shm.Spec {
	return shm.Spec{Kind: shm.KindEndpoint, UUID: id, Sections: []shm.Section{
		{Kind: sectInfo, Length: infoBytes, ElemSize: infoBytes, Capacity: 1,
			LayoutHash: shm.LayoutHash(infoLayout)},
		{Kind: sectCounters, Length: uint64(8 * len(counterNames)), ElemSize: 8,
			Capacity:   uint64(len(counterNames)),
			LayoutHash: shm.LayoutHash("u64 " + strings.Join(counterNames, " "))},
		{Kind: sectUpdate, Length: 8 * updateWords, ElemSize: 8, Capacity: updateWords,
			LayoutHash: shm.LayoutHash("begun ended u64")},
		{Kind: sectWish, Length: wishBytes, LayoutHash: shm.LayoutHash("generation u64, id 16")},
	}}
}

// words lays atomic words over the start of a section.
func words(mem []byte, n int) ([]*ring.Index, error) {
	out := make([]*ring.Index, n)
	for i := range out {
		w, err := ring.IndexAt(mem, uint64(8*i))
		if err != nil {
			return nil, err
		}
		out[i] = w
	}
	return out, nil
}

func text(b []uint8) string {
	if i := strings.IndexByte(string(b), 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
