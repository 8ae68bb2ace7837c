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

// SetUses has each place of the outbox have had so many users.
func (e *Endpoint) SetUses(n int) {
	for place := range e.uses {
		e.uses[place] = n
	}
}
