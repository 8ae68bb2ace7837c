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

// Looking is how many readers look, and MaxLooking how many may.
var (
	Looking    = &looking
	MaxLooking = maxLooking
)

// Linger has a reader look before it sleeps, as on a machine with several CPUs.
func (s *Stack) Linger(c *Conn) bool {
	s.budget = lookFor
	return s.linger(c)
}

// Patience is what a connection learns.
type Patience struct{ patience }

// Waits learns from a look, and returns how many waits begin without one from now on.
func (p *Patience) Waits(found, interrupted bool) (n int) {
	for p.learn(found, interrupted); !p.grant(); n++ {
	}
	return n
}

// Stack is that of a connection.
func (c *Conn) Stack() *Stack { return c.stack }
