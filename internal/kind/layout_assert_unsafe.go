package kind

import "unsafe"

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
