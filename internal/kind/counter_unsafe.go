package kind

import (
	"sync/atomic"
	"unsafe"

	"github.com/shmring/shmring/doorbell"
)

// CounterWords is the section of a counter.
type CounterWords struct {
	Value atomic.Uint64
	_     [120]byte
	Errs  atomic.Uint64
	Sets  atomic.Uint64
	_     [112]byte
	Bell  doorbell.CountWords
	_     [128]byte
	Rows  [doorbell.CountSeats]CounterRow
}

type CounterRow struct {
	Mark  atomic.Uint64
	Pid   atomic.Uint64
	PidNS atomic.Uint64
	Start atomic.Uint64
	// Of the last who died in the seat, and twice how many did, or one more: see bury.
	FormerMark  atomic.Uint64
	FormerPID   atomic.Uint64
	FormerPIDNS atomic.Uint64
	FormerStart atomic.Uint64
	Deaths      atomic.Uint64
	_           [56]byte
}

// Layouts, asserted in both directions.
const (
	_ = uint(unsafe.Sizeof(CounterWords{}) - CounterBytes)
	_ = uint(CounterBytes - unsafe.Sizeof(CounterWords{}))
	_ = uint(unsafe.Sizeof(CounterRow{}) - CounterRowBytes)
	_ = uint(CounterRowBytes - unsafe.Sizeof(CounterRow{}))
	_ = uint(unsafe.Offsetof(CounterWords{}.Errs) - OffCounterErr)
	_ = uint(OffCounterErr - unsafe.Offsetof(CounterWords{}.Errs))
	_ = uint(unsafe.Offsetof(CounterWords{}.Bell) - OffCounterBell)
	_ = uint(OffCounterBell - unsafe.Offsetof(CounterWords{}.Bell))
	_ = uint(unsafe.Offsetof(CounterWords{}.Rows) - OffCounterRows)
	_ = uint(OffCounterRows - unsafe.Offsetof(CounterWords{}.Rows))
)
