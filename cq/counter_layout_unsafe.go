package cq

import (
	"sync/atomic"
	"unsafe"

	"github.com/shmring/shmring/doorbell"
)

// counterWords is the section of a counter.
type counterWords struct {
	value atomic.Uint64
	_     [120]byte
	errs  atomic.Uint64
	sets  atomic.Uint64
	_     [112]byte
	bell  doorbell.CountWords
	_     [128]byte
	rows  [doorbell.CountSeats]counterRow
}

type counterRow struct {
	mark  atomic.Uint64
	pid   atomic.Uint64
	pidNS atomic.Uint64
	start atomic.Uint64
	// Of the last who died in the seat, and twice how many did, or one more: see bury.
	formerMark  atomic.Uint64
	formerPID   atomic.Uint64
	formerPIDNS atomic.Uint64
	formerStart atomic.Uint64
	deaths      atomic.Uint64
	_           [56]byte
}

// Layouts, asserted in both directions.
const (
	_ = uint(unsafe.Sizeof(counterWords{}) - counterBytes)
	_ = uint(counterBytes - unsafe.Sizeof(counterWords{}))
	_ = uint(unsafe.Sizeof(counterRow{}) - counterRowBytes)
	_ = uint(counterRowBytes - unsafe.Sizeof(counterRow{}))
	_ = uint(unsafe.Offsetof(counterWords{}.errs) - offCounterErr)
	_ = uint(offCounterErr - unsafe.Offsetof(counterWords{}.errs))
	_ = uint(unsafe.Offsetof(counterWords{}.bell) - offCounterBell)
	_ = uint(offCounterBell - unsafe.Offsetof(counterWords{}.bell))
	_ = uint(unsafe.Offsetof(counterWords{}.rows) - offCounterRows)
	_ = uint(offCounterRows - unsafe.Offsetof(counterWords{}.rows))
)
