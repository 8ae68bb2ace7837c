package kind

import (
	"sync/atomic"
	"unsafe"

	"github.com/shmring/shmring/internal/counterbell"
	"github.com/shmring/shmring/shm"
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
