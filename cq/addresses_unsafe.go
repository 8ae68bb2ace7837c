package cq

import "unsafe"

// Layout of an address vector's page, asserted in both directions.
const (
	_ = uint(addrWordsBytes - unsafe.Sizeof(addrWords{}))
	_ = uint(unsafe.Offsetof(addrWords{}.changes) - 8)
	_ = uint(8 - unsafe.Offsetof(addrWords{}.changes))
	_ = uint(unsafe.Offsetof(addrWords{}.used) - 16)
	_ = uint(16 - unsafe.Offsetof(addrWords{}.used))
)
