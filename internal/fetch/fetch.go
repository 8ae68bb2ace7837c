// Package fetch has cache lines on their way before they are needed, or not at all.
package fetch

import "sync/atomic"

// Own asks for the line of a word that is written soon, and for its other copies to go. It changes
// nothing, and waits for nothing.
func Own(p *atomic.Uint64) { own(p) }
