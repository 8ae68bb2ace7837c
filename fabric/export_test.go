package fabric

import (
	"time"

	"github.com/shmring/shmring/internal/wake"
)

// Bell is what peers ring.
func (e *Endpoint) Bell() *wake.Bell { return e.bell }

// SetClosePatience returns what sets it back.
func SetClosePatience(d time.Duration) (back func()) {
	was := closePatience
	closePatience = d
	return func() { closePatience = was }
}

// SetConnPeers is that of how many peers a listener, or who dials, can have.
func SetConnPeers(n int) (back func()) {
	was := connOptions
	connOptions.Peers = n
	return func() { connOptions = was }
}

// Below returns the endpoint of a listener, or of a connection.
func Below(of any) *Endpoint {
	if c, ok := of.(*conn); ok {
		return c.m.e
	}
	return of.(*listener).m.e
}

// Tidy ends lanes to peers without connections.
func (e *Endpoint) Tidy() { e.markAgain(0) }

// SetUses has each place of the outbox have had so many users.
func (e *Endpoint) SetUses(n int) {
	for place := range e.uses {
		e.uses[place] = n
	}
}
