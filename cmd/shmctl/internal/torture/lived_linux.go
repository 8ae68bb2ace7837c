package torture

import (
	"sync"
	"sync/atomic"
	"time"
)

// A promise about seconds is judged by the time that those could run who are to keep it: on a
// machine that stands still, or is short of time, nobody is late who had none.
const (
	livedEvery = 20 * time.Millisecond
	livedMost  = 2 * livedEvery // that one look counts, however long ago the last one was
)

var (
	lived  atomic.Int64 // nanoseconds; live stores it
	living sync.Once
)

// lifetime returns for how long this process could run since it first asked.
func lifetime() time.Duration {
	living.Do(func() { go live() })
	return time.Duration(lived.Load())
}

func live() {
	for last := time.Now(); ; {
		nap(livedEvery)
		now := time.Now()
		lived.Add(int64(min(now.Sub(last), livedMost)))
		last = now
	}
}

// beat tells the supervisor of it.
func (c *child) beat() {
	for word := c.ledger.word(wordLived + c.Place); ; nap(livedEvery) {
		word.Store(uint64(lifetime()))
	}
}
