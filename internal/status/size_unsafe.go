package status

import "unsafe"

const infoBytes = uint64(unsafe.Sizeof(infoWords{}))

// The layout is that of every program.
var _ [336]struct{} = [infoBytes]struct{}{}
