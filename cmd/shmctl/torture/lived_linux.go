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

// mourners says for how long all of them could run that have to tell of deaths, and this process,
// which has to hear them.
type mourners struct {
	own   time.Duration         // of this process, when it last looked
	seen  map[int]time.Duration // of the process of a place, then
	lived time.Duration
}

// look counts as much as the one had that had least. Who has not begun has no death to tell of.
func (m *mourners) look(s *supervisor, own time.Duration) time.Duration {
	least := own - m.own
	m.own = own
	for _, p := range s.procs {
		if !p.role.mourns {
			continue
		}
		now, before := time.Duration(s.ledger.word(wordLived+p.place).Load()), m.seen[p.place]
		m.seen[p.place] = now
		if now == 0 || p.empty || p.ended() {
			continue
		}
		if now < before { // it is another one by now
			before = 0
		}
		least = min(least, now-before)
	}
	m.lived += least
	return m.lived
}
