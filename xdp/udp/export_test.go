package udp

import "time"

// A test's machine may stand still for longer than a datagram waits, which is lost then, as it
// should be.
func init() { resolveTries = time.Minute }

// What tests put in place of an interface.
type (
	Backend  = backend
	Datagram = datagram
)

var (
	NewStack   = newStack
	OnEndpoint = newOnEndpoint
)
