package doorbell

import "unsafe"

// CountBytes is the size of the words of a counter's bell.
const CountBytes = 128 + 8*CountSeats

// Layout of the words that processes share, checked at compile time in both directions.
const (
	_ = uint(unsafe.Sizeof(CountWords{}) - CountBytes)
	_ = uint(CountBytes - unsafe.Sizeof(CountWords{}))
	_ = uint(unsafe.Offsetof(CountWords{}.armed) - 8)
	_ = uint(8 - unsafe.Offsetof(CountWords{}.armed))
	_ = uint(unsafe.Offsetof(CountWords{}.standing) - 40)
	_ = uint(40 - unsafe.Offsetof(CountWords{}.standing))
	_ = uint(unsafe.Offsetof(CountWords{}.thresholds) - 128)
	_ = uint(128 - unsafe.Offsetof(CountWords{}.thresholds))
)
