package kind

import (
	"sync/atomic"
	"unsafe"

	"github.com/shmring/shmring/internal/counterbell"
	"github.com/shmring/shmring/shm"
)

// Layout of an address vector's page, asserted in both directions.
const (
	_ = uint(AddrWordsBytes - unsafe.Sizeof(AddrWords{}))
	_ = uint(unsafe.Offsetof(AddrWords{}.Changes) - 8)
	_ = uint(8 - unsafe.Offsetof(AddrWords{}.Changes))
	_ = uint(unsafe.Offsetof(AddrWords{}.Used) - 16)
	_ = uint(16 - unsafe.Offsetof(AddrWords{}.Used))
)

// CounterWords is the section of a counter.
type CounterWords struct {
	Value atomic.Uint64
	_     [120]byte
	Errs  atomic.Uint64
	Sets  atomic.Uint64
	_     [112]byte
	Bell  counterbell.Words
	_     [128]byte
	Seats [counterbell.Seats * shm.SeatBytes]byte // records, see shm.Seats
}

// Layouts, asserted in both directions.
const (
	_ = uint(unsafe.Sizeof(CounterWords{}) - CounterBytes)
	_ = uint(CounterBytes - unsafe.Sizeof(CounterWords{}))
	_ = uint(unsafe.Offsetof(CounterWords{}.Errs) - OffCounterErr)
	_ = uint(OffCounterErr - unsafe.Offsetof(CounterWords{}.Errs))
	_ = uint(unsafe.Offsetof(CounterWords{}.Bell) - OffCounterBell)
	_ = uint(OffCounterBell - unsafe.Offsetof(CounterWords{}.Bell))
	_ = uint(unsafe.Offsetof(CounterWords{}.Seats) - OffCounterRows)
	_ = uint(OffCounterRows - unsafe.Offsetof(CounterWords{}.Seats))
)

// LoadLine copies a cache line that its writer may be changing, word by word: atomic loads stay in
// order with those around them on every processor, and none is done twice.
func LoadLine[T any](p *T) (line T) {
	from, to := (*[8]uint64)(unsafe.Pointer(p)), (*[8]uint64)(unsafe.Pointer(&line))
	for i := range from {
		to[i] = atomic.LoadUint64(&from[i])
	}
	return line
}

// Layouts, asserted in both directions.
const (
	_ = uint(unsafe.Sizeof(Record{}) - ErrorBytes)
	_ = uint(ErrorBytes - unsafe.Sizeof(Record{}))
	_ = uint(unsafe.Sizeof(RowWords{}) - RowBytes)
	_ = uint(RowBytes - unsafe.Sizeof(RowWords{}))
	_ = uint(unsafe.Offsetof(RowWords{}.Head) - RowOffIndex)
	_ = uint(RowOffIndex - unsafe.Offsetof(RowWords{}.Head))
	_ = uint(unsafe.Offsetof(QueueWords{}.State) - OffState)
	_ = uint(OffState - unsafe.Offsetof(QueueWords{}.State))
	_ = uint(unsafe.Offsetof(QueueWords{}.Face) - OffFace)
	_ = uint(OffFace - unsafe.Offsetof(QueueWords{}.Face))
	_ = uint(unsafe.Offsetof(QueueWords{}.Bell) - OffBell)
	_ = uint(OffBell - unsafe.Offsetof(QueueWords{}.Bell))
	_ = uint(unsafe.Offsetof(LaneWords{}.Publishes) - 128)
	_ = uint(128 - unsafe.Offsetof(LaneWords{}.Publishes))
	_ = uint(unsafe.Offsetof(LaneWords{}.Order) - 256)
	_ = uint(256 - unsafe.Offsetof(LaneWords{}.Order))
	_ = uint(unsafe.Offsetof(LaneWords{}.Again) - 272)
	_ = uint(272 - unsafe.Offsetof(LaneWords{}.Again))
	_ = uint(unsafe.Offsetof(LaneWords{}.Epochs) - 384)
	_ = uint(384 - unsafe.Offsetof(LaneWords{}.Epochs))
	_ = uint(unsafe.Offsetof(LaneWords{}.Rung) - 512)
	_ = uint(512 - unsafe.Offsetof(LaneWords{}.Rung))
)
