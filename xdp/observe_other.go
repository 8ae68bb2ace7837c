//go:build !linux

package xdp

// RingSizes is how many entries the rings of a socket have.
type RingSizes struct{ Rx, Tx, Fill, Comp uint32 }

// RingSizes says nothing.
func (*Socket) RingSizes() RingSizes { return RingSizes{} }

// Program returns none.
func (*Socket) Program() *Program { return nil }

// NetNSCookie says nothing.
func (*Socket) NetNSCookie() uint64 { return 0 }
