package kind

import "unsafe"

// Layout of an address vector's page, asserted in both directions.
const (
	_ = uint(AddrWordsBytes - unsafe.Sizeof(AddrWords{}))
	_ = uint(unsafe.Offsetof(AddrWords{}.Changes) - 8)
	_ = uint(8 - unsafe.Offsetof(AddrWords{}.Changes))
	_ = uint(unsafe.Offsetof(AddrWords{}.Used) - 16)
	_ = uint(16 - unsafe.Offsetof(AddrWords{}.Used))
)
