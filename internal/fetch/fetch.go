// Package fetch asks for cache lines before they are needed, and does not ask for those that are
// overwritten whole.
package fetch

import "sync/atomic"

// Own asks for the line of a word that is written soon, and for its other copies to go. It changes
// nothing, and waits for nothing.
func Own(p *atomic.Uint64) { own(p) }
