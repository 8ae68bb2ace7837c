package counterbell

import "unsafe"

// Bytes is the size of the words of a counter's bell.
const Bytes = 128 + 8*Seats

// Layout of the words that processes share, checked at compile time in both directions.
const (
	_ = uint(unsafe.Sizeof(Words{}) - Bytes)
	_ = uint(Bytes - unsafe.Sizeof(Words{}))
	_ = uint(unsafe.Offsetof(Words{}.armed) - 8)
	_ = uint(8 - unsafe.Offsetof(Words{}.armed))
	_ = uint(unsafe.Offsetof(Words{}.standing) - 40)
	_ = uint(40 - unsafe.Offsetof(Words{}.standing))
	_ = uint(unsafe.Offsetof(Words{}.thresholds) - 128)
	_ = uint(128 - unsafe.Offsetof(Words{}.thresholds))
)
