package udp

import "time"

// A test's machine may stand still for longer than a datagram waits, which is lost then, as it
// should be.
func init() { resolveTries = time.Minute }
