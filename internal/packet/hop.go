package packet

import (
	"fmt"
	"syscall"
)

// What a lookup of a hop can find instead of one.
var (
	// ErrResolving: the kernel has been asked for the hardware address and has no answer yet
	// (EAGAIN). Ask again later.
	ErrResolving = fmt.Errorf("packet: hardware address is being resolved: %w", syscall.EAGAIN)
	// ErrUnreachable: there is no route, or nobody answered (EHOSTUNREACH).
	ErrUnreachable = fmt.Errorf("packet: destination cannot be reached: %w", syscall.EHOSTUNREACH)
)
