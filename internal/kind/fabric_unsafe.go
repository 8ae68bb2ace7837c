package kind

import (
	"sync/atomic"
	"unsafe"

	"github.com/shmring/shmring/internal/wake"
)

// Word is one word of shared memory.
type Word = atomic.Uint64

// FabricPage is the first section of an endpoint.
type FabricPage struct {
	Arm   wake.Arm // of the endpoint's bell
	State Word     // FabricClosed after the last head was stored
	// Accepts is 1 while connections to the endpoint are taken.
	Accepts Word
	// Type is FabricDatagrams, or 0.
	Type Word
	_    [FabricPageBytes - 152]byte
}

// FabricRow is what a receiver writes for one sender. The sender loads Rev, then the others.
type FabricRow struct {
	Bell    wake.Row      // parked: the receiver does not look at the lane
	Owner   Word          // number of the lane that the row is for, stored after Head
	Head    Word          // messages before this index were examined
	Granted Word          // bytes that the sender may have sent in all
	Rung    atomic.Uint32 // rings of a sender that cannot be marked
	_       uint32
	Matched Word                 // a bit changes when the message that asked by it has its receive
	Owed    Word                 // 1: records wait for room in the control ring
	Control Word                 // tail of the control ring
	Rev     Word                 // stored last: it moves when one of the others has
	Clear   [FabricControls]Word // the control ring: see FabricClear
}

// FabricLane is what a sender writes about one lane.
type FabricLane struct {
	Bell       wake.Row // parked: the sender does not look at the row
	ID         Word     // number of the lane, stored last; 0: nobody's
	Slab       Word     // its first slot
	Slots      Word     // how many it has, a power of two
	Target     Word     // outbox of the endpoint that it leads to
	Pays       Word     // 1: each publish is a full fence; 0: the receiver runs membarrier
	Control    Word     // head of the control ring, which the receiver has in its row
	TargetHigh Word     // uuid of the endpoint that it leads to
	TargetLow  Word
	Type       Word // of the endpoint that sends, as its page says it
	_          Word
	Rung       atomic.Uint32 // rings of a receiver that cannot be marked
	_          [44]byte
}

// FabricSlot is one message. Its first line has the first 32 bytes of the payload.
type FabricSlot struct {
	Seq     Word // index + 1, stored last
	Head    Word // what it is, flags, operation, length
	Tag     Word // with FabricTagged
	Data    Word // with FabricWithData
	Payload [FabricInline]byte
	More    [4]Word // generation of an operation; offset in the pool, or address; the others are 0
}

// FabricRegion says which memory of an endpoint a key reaches. The other words change while nobody
// uses a key of its place.
type FabricRegion struct {
	Key    Word // 0: nothing. Stored last, and first when it is revoked
	Access Word // what may be done: FabricRead and so on
	Offset Word // in the memory for regions
	Length Word
	_      [32]byte
}

// FabricUse is what one sender writes, in the place of its row.
type FabricUse struct {
	Key Word // that it uses now; 0: none
	_   [56]byte
}

// GroupRow is a member of a group that receives. Whoever has the seat writes it.
type GroupRow struct {
	Use        Word // generation of the seat; 0: nobody's. Stored last, and first when it is given up
	Outbox     Word // address of the endpoint
	High, Low  Word
	Generation Word
	_          [24]byte
}

// Within returns where in mem the slice b of it begins. It is false if b is no slice of it.
func Within(mem, b []byte) (at int, ok bool) {
	from, to := unsafe.Pointer(unsafe.SliceData(mem)), unsafe.Pointer(unsafe.SliceData(b))
	off := uintptr(to) - uintptr(from)
	return int(off), off < uintptr(len(mem)) && uintptr(len(b)) <= uintptr(len(mem))-off
}

// Offset returns where in mem the word at w lies, in bytes.
func Offset[T any](mem []byte, w *T) uint64 {
	return uint64(uintptr(unsafe.Pointer(w)) - uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

// Layout of the words that processes share: an index other than 0 does not compile.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(FabricPage{})-FabricPageBytes]
	_ = [1]struct{}{}[unsafe.Sizeof(FabricRow{})-FabricRowBytes]
	_ = [1]struct{}{}[unsafe.Sizeof(FabricLane{})-FabricLaneBytes]
	_ = [1]struct{}{}[unsafe.Sizeof(FabricSlot{})-FabricSlotBytes]
	_ = [1]struct{}{}[unsafe.Sizeof(FabricRegion{})-FabricRegionBytes]
	_ = [1]struct{}{}[unsafe.Sizeof(FabricUse{})-FabricUseBytes]
	_ = [1]struct{}{}[unsafe.Sizeof(GroupRow{})-GroupRowBytes]
	_ = [1]struct{}{}[unsafe.Offsetof(FabricPage{}.State)-128]
	_ = [1]struct{}{}[unsafe.Offsetof(FabricRow{}.Rev)-184]
	_ = [1]struct{}{}[unsafe.Offsetof(FabricLane{}.ID)-128]
	_ = [1]struct{}{}[unsafe.Offsetof(FabricLane{}.TargetLow)-184]
	_ = [1]struct{}{}[unsafe.Offsetof(FabricRow{}.Rung)-152]
	_ = [1]struct{}{}[unsafe.Offsetof(FabricLane{}.Rung)-208]
	_ = [1]struct{}{}[unsafe.Offsetof(FabricSlot{}.Payload)-32]
)
