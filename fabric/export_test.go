package fabric

import "time"

// SetClosePatience returns what sets it back.
func SetClosePatience(d time.Duration) (back func()) {
	was := closePatience
	closePatience = d
	return func() { closePatience = was }
}
