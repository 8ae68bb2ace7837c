package wake

// Known returns how many lanes the bell knows.
func (b *Bell) Known() int { return b.known }

// Len returns how many members the set has.
func (s *Set) Len() int {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.n
}

// ConsiderAll makes the next call look at every member: marks are hints, and whoever only polls
// has no slices. It may be called from anywhere.
func (s *Set) ConsiderAll() { s.all() }

// Ring marks the member's bit and wakes who waits on it: P6 and P7, for a producer of something
// that is no queue and saw its own flag (see [Member].Join). It may be called from anywhere.
func (r *DomainRinger) Ring() { r.ring() }
