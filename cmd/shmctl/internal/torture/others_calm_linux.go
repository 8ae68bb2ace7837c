package torture

import (
	"fmt"
	"time"
)

// A reader of other users that is rung by nobody is woken all the same, by whoever attaches or dies
// next, and then reads what all of them posted: a ring that was lost is not missed. So everybody is
// left alone now and then, and no writer posts until everything is seen.

// othersLatest is when more is seen of what was published, in time that the reader could run. Its
// writer needs none: it has rung before it notes what it published.
const othersLatest = 20 * time.Second

// vigilEvery is how far two looks are apart that count: many of the steps in which lives are told.
const vigilEvery = 10 * livedEvery

// calm is such a time. It ends early when one of them dies at its step.
func (b *between) calm(s *supervisor) error {
	who := b.there(s)
	if who == nil {
		return nil
	}
	words := b.shared(s.ledger)
	words[othersStill].Store(1)
	defer words[othersStill].Store(0)
	var v vigil
	for since := lifetime(); lifetime()-since < patience; nap(time.Millisecond) {
		s.overdue(lifetime())
		missing := b.unseen(s, &v.now)
		if missing == "" {
			words[othersCalms].Add(1)
			return nil
		}
		if v.look(s, who, lifetime()) > othersLatest {
			way := s.ledger.region(b.reader)[othersBy].Load() % othersWays
			s.broken(b.writer, kindHung, 1, "nobody posts or is killed, and no more than %s in %v "+
				"by reader %d (pid %d, waits by %s)", missing, othersLatest, v.now.holder, v.now.pid,
				b.ways[way].name)
			return nil
		}
		if err := s.reviveAll(); err != nil {
			return err
		}
		for p, was := range who {
			if p.empty || p.Over() || p.process() != was {
				return nil
			}
		}
	}
	return nil
}

// there returns the processes of readers and writers; nil if one is dead.
func (b *between) there(s *supervisor) map[*proc]process {
	who := map[*proc]process{}
	for _, p := range s.procs {
		if p.role.name != b.reader && p.role.name != b.writer {
			continue
		}
		if p.empty || p.Over() {
			return nil
		}
		who[p] = p.process()
	}
	return who
}

// unseen says what of writers that live is published and not seen, and notes how it stands.
func (b *between) unseen(s *supervisor, now *standing) (missing string) {
	readers, ss := s.ledger.region(b.reader), s.ledger.sessions(b.writer)
	*now = standing{holder: readers[othersHolder].Load(), pid: readers[othersPid].Load()}
	for i := range ss.writers {
		n := ss.last(i)
		if n == 0 || b.shared(s.ledger)[othersWith+i].Load() == 0 {
			continue // of one that died the rest may be gone with both, and the next waits for us
		}
		e := ss.at(i, n)
		published, seen := e.published.Load(), e.seen.Load()
		now.sessions[i], now.seen[i] = n, seen
		if seen >= published {
			continue
		}
		waits := e.home.Load() == now.holder // else it is on its way to the reader
		if waits || missing == "" {
			missing = fmt.Sprintf("%d of %d of writer %d are seen", seen, published, i)
		}
		now.waiting = now.waiting || waits
	}
	return missing
}

// standing is what a reader has seen so far.
type standing struct {
	holder, pid    uint64
	waiting        bool // for the reader, and for nobody else
	sessions, seen [othersWriters]uint64
}

// vigil measures for how long a reader could run and saw nothing that was there.
type vigil struct {
	now, last standing
	known     bool
	own       time.Duration // this process's life, when it last looked
	reader    time.Duration // the reader's, then
	lived     time.Duration // for how long both could run since
}

// look compares with the last look. own is the life of this process.
func (v *vigil) look(s *supervisor, who map[*proc]process, own time.Duration) time.Duration {
	reader := time.Duration(0)
	for p, is := range who {
		if uint64(is.pid) == v.now.pid {
			reader = time.Duration(s.ledger.word(wordLived + p.place).Load())
		}
	}
	switch {
	case v.known && v.now == v.last && v.now.waiting && v.now.pid != 0:
		if own-v.own < vigilEvery {
			return v.lived
		}
		v.lived += min(own-v.own, reader-v.reader)
	default:
		v.lived = 0
	}
	v.known, v.last, v.own, v.reader = true, v.now, own, reader
	return v.lived
}
