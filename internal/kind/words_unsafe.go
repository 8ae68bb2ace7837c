package kind

import (
	"sync/atomic"
	"unsafe"

	"github.com/shmring/shmring/internal/counterbell"
	"github.com/shmring/shmring/shm"
)

// Layout of an address vector's page, asserted: an index other than 0 does not compile.
const _ = uint(AddrWordsBytes - unsafe.Sizeof(AddrWords{}))

var (
	_ = [1]struct{}{}[unsafe.Offsetof(AddrWords{}.Changes)-8]
	_ = [1]struct{}{}[unsafe.Offsetof(AddrWords{}.Used)-16]
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

// Layouts, asserted: an index other than 0 does not compile.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(CounterWords{})-CounterBytes]
	_ = [1]struct{}{}[unsafe.Offsetof(CounterWords{}.Errs)-OffCounterErr]
	_ = [1]struct{}{}[unsafe.Offsetof(CounterWords{}.Bell)-OffCounterBell]
	_ = [1]struct{}{}[unsafe.Offsetof(CounterWords{}.Seats)-OffCounterRows]
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

// Layouts, asserted: an index other than 0 does not compile.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(Record{})-ErrorBytes]
	_ = [1]struct{}{}[unsafe.Sizeof(RowWords{})-RowBytes]
	_ = [1]struct{}{}[unsafe.Offsetof(RowWords{}.Head)-RowOffIndex]
	_ = [1]struct{}{}[unsafe.Offsetof(QueueWords{}.State)-OffState]
	_ = [1]struct{}{}[unsafe.Offsetof(QueueWords{}.Face)-OffFace]
	_ = [1]struct{}{}[unsafe.Offsetof(QueueWords{}.Bell)-384]
	_ = [1]struct{}{}[unsafe.Offsetof(LaneWords{}.Publishes)-128]
	_ = [1]struct{}{}[unsafe.Offsetof(LaneWords{}.Order)-256]
	_ = [1]struct{}{}[unsafe.Offsetof(LaneWords{}.Again)-272]
	_ = [1]struct{}{}[unsafe.Offsetof(LaneWords{}.Epochs)-384]
	_ = [1]struct{}{}[unsafe.Offsetof(LaneWords{}.Rung)-512]
)
