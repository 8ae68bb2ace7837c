package cq

// Stats are counts of a queue's reader.
type Stats struct {
	Read     uint64 // entries handed to the application, by this reader and those before it
	Sleeps   uint64 // system calls to sleep
	Barriers uint64 // system calls that paid for the order of writers' publishes
	Resets   uint64 // system calls of TryWait, to reset the descriptor
	Lanes    int    // lanes that entries were ever taken from
	GivenUp  uint64 // lanes whose writers could not be trusted; see LaneError
	Retired  uint64 // lanes of other users that have ended
	// NoBarrier says that membarrier(2) was allowed when the queue was opened and is refused by now,
	// which a seccomp filter does that comes late. No entry is lost, but a wake may be: each sleep
	// ends after 100 ms and looks at all lanes. Install filters first, or allow that call.
	NoBarrier bool
}

// Stats returns counters. It may be called from anywhere while the queue is open.
func (q *core) Stats() Stats {
	if !q.guard.enterAny() {
		return Stats{}
	}
	defer q.guard.leaveAny()
	s := Stats{Sleeps: q.bell.Sleeps(), Barriers: q.bell.Barriers(),
		Resets: q.face.Calls(), NoBarrier: q.noBarrier.Load()}
	s.GivenUp = q.given.Load()
	for i := range q.rows {
		s.Retired += q.rows[i].Retired.Load()
		if n := q.rows[i].Head.Load(); n > 0 {
			s.Read += n
			s.Lanes++
		}
	}
	return s
}
