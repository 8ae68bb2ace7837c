package counterbell

import "unsafe"

// Bytes is the size of the words of a counter's bell.
const Bytes = 128 + 8*Seats

// Layout of the words that processes share: an index other than 0 does not compile.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(Words{})-Bytes]
	_ = [1]struct{}{}[unsafe.Offsetof(Words{}.armed)-8]
	_ = [1]struct{}{}[unsafe.Offsetof(Words{}.standing)-40]
	_ = [1]struct{}{}[unsafe.Offsetof(Words{}.thresholds)-128]
)
