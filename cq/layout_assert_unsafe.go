package cq

import "unsafe"

// Layouts, asserted in both directions.
const (
	_ = uint(unsafe.Sizeof(Entry{}) - slotBytes)
	_ = uint(slotBytes - unsafe.Sizeof(Entry{}))
	_ = uint(unsafe.Sizeof(errorRecord{}) - errorBytes)
	_ = uint(errorBytes - unsafe.Sizeof(errorRecord{}))
	_ = uint(unsafe.Sizeof(rowWords{}) - rowBytes)
	_ = uint(rowBytes - unsafe.Sizeof(rowWords{}))
	_ = uint(unsafe.Offsetof(rowWords{}.head) - rowOffIndex)
	_ = uint(rowOffIndex - unsafe.Offsetof(rowWords{}.head))
	_ = uint(unsafe.Offsetof(queueWords{}.state) - offState)
	_ = uint(offState - unsafe.Offsetof(queueWords{}.state))
	_ = uint(unsafe.Offsetof(queueWords{}.face) - offFace)
	_ = uint(offFace - unsafe.Offsetof(queueWords{}.face))
	_ = uint(unsafe.Offsetof(queueWords{}.bell) - offBell)
	_ = uint(offBell - unsafe.Offsetof(queueWords{}.bell))
	_ = uint(unsafe.Offsetof(laneWords{}.publishes) - 128)
	_ = uint(128 - unsafe.Offsetof(laneWords{}.publishes))
	_ = uint(unsafe.Offsetof(laneWords{}.order) - 256)
	_ = uint(256 - unsafe.Offsetof(laneWords{}.order))
	_ = uint(unsafe.Offsetof(laneWords{}.epochs) - 384)
	_ = uint(384 - unsafe.Offsetof(laneWords{}.epochs))
	_ = uint(unsafe.Offsetof(laneWords{}.rung) - 512)
	_ = uint(512 - unsafe.Offsetof(laneWords{}.rung))
	_ = uint(unsafe.Offsetof(Entry{}.Meta) - 56)
	_ = uint(56 - unsafe.Offsetof(Entry{}.Meta))
	_ = uint(unsafe.Sizeof(Tagged{}) - unsafe.Offsetof(Entry{}.Src))
	_ = uint(unsafe.Offsetof(Entry{}.Src) - unsafe.Sizeof(Tagged{}))
)
