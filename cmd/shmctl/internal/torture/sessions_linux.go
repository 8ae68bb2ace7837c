package torture

import (
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/crash"
)

// maxSessions of one writer.
const maxSessions = 1 << 16

// sessions are what the writers of a role note in the ledger, at the beginning of its words: how
// many each had, and what is known of each. Entries are numbered from 1 in each session, and say
// whose they are.
type sessions struct {
	role    string
	words   []atomic.Uint64
	writers int
}

// sessionsLength is how many words they take.
func sessionsLength(writers int) int { return writers + writers*maxSessions*sessionWords }

func (l *ledger) sessions(role string) sessions {
	return sessions{role, l.region(role), roleOf(role).places}
}

// count is how many sessions a writer had; the writer stores it.
func (ss sessions) count(writer int) *atomic.Uint64 { return &ss.words[writer] }

// last returns the number of a writer's last session, within bounds.
func (ss sessions) last(writer int) uint64 { return min(ss.count(writer).Load(), maxSessions-1) }

func (ss sessions) at(writer int, n uint64) session {
	return sessionAt(ss.words[ss.writers:], writer*maxSessions+int(n))
}

// sessionName packs whose session it is, as entries carry it; 0 is nobody's.
func sessionName(writer int, n uint64) uint64 { return uint64(writer+1)<<32 | n }

// named returns the session of a name.
func (ss sessions) named(name uint64) (s session, ok bool) {
	writer, n := int(name>>32)-1, name&(1<<32-1)
	if writer < 0 || writer >= ss.writers || n == 0 || n >= maxSessions {
		return session{}, false
	}
	return ss.at(writer, n), true
}

// sum takes them into the report.
func (ss sessions) sum(r *RoleReport) {
	had := uint64(0)
	for i := range ss.writers {
		last := ss.last(i)
		had += last
		for n := uint64(1); n <= last; n++ {
			e := ss.at(i, n)
			published := e.published.Load()
			r.Published += published
			r.InDoubt += max(published, e.intent.Load()) - published
			r.Read += e.seen.Load()
		}
	}
	r.Counts["sessions"] = had
}

// exactName is a session of which nothing may come beyond what is known as published.
type exactName struct {
	role string
	name uint64
}

// check compares the ledger at the end.
func (ss sessions) check(s *supervisor) {
	for i := range ss.writers {
		for n := uint64(1); n <= ss.last(i); n++ {
			e := ss.at(i, n)
			published, seen := e.published.Load(), e.seen.Load()
			if s.exact[exactName{ss.role, sessionName(i, n)}] && seen > published {
				s.broken(ss.role, kindUnpublished, seen-published, "of %s %d session %d, which "+
					"died before it published more than %d, %d were seen", ss.role, i, n, published, seen)
			}
			if seen < published {
				s.broken(ss.role, kindLost, published-seen, "of %s %d session %d only %d of %d "+
					"were seen", ss.role, i, n, seen, published)
			}
		}
	}
}

// afterPublish are steps at which the tail is stored, and the poster was not told: what stands
// before it must be read. A writer also rings when its lane is full and it publishes nothing, so
// the steps of ringing say nothing.
var afterPublish = map[crash.Label]bool{crash.PublishStored: true, crash.PublishEnded: true,
	crash.EventPublished: true}

// beforePublish are steps at which it is not stored yet: no more may ever be read of the session.
var beforePublish = map[crash.Label]bool{crash.Filled: true, crash.Stamped: true,
	crash.EventFilled: true}

// bequest is what a writer that died has left to be read: its successor's lane would be looked at
// for that one's sake.
type bequest struct {
	want  uint64 // 0 is nothing
	of    session
	since time.Duration // as lifetime has it
}

func (b *bequest) seen() bool { return b.want == 0 || b.of.seen.Load() >= b.want }

// died notes what is left to be read. At a step it is known exactly whether the entries that the
// writer was posting are published.
func (ss sessions) died(s *supervisor, p *proc) {
	n := ss.last(p.index)
	if n == 0 {
		return
	}
	of := ss.at(p.index, n)
	p.left = bequest{of.published.Load(), of, lifetime()}
	if p.shot {
		return
	}
	if beforePublish[p.step] {
		s.exact[exactName{ss.role, sessionName(p.index, n)}] = true
	} else if afterPublish[p.step] && p.left.want < of.intent.Load() {
		p.left.want++ // at least
	}
}

// sessionsDied is role.died of a role with sessions.
func sessionsDied(s *supervisor, p *proc) error {
	s.ledger.sessions(p.role.name).died(s, p)
	return nil
}

// sessionsSettled tells whether the next writer may come: the reader has seen all of its
// predecessor, though that could not ring any more.
func sessionsSettled(s *supervisor, p *proc) bool {
	b := &p.left
	if !b.seen() && lifetime()-b.since < patience/2 {
		return false
	}
	if !b.seen() {
		s.broken(p.role.name, kindHung, 1, "of %s %d, which is dead, %d of %d were seen in %v (step "+
			"%v)", p.role.name, p.index, b.of.seen.Load(), b.want, patience/2, p.step)
	}
	b.want = 0
	return true
}

func sumSessions(name string) func(*supervisor, *RoleReport) {
	return func(s *supervisor, r *RoleReport) { s.ledger.sessions(name).sum(r) }
}

func checkSessions(name string) func(*supervisor) {
	return func(s *supervisor) { s.ledger.sessions(name).check(s) }
}

// judge compares what a reader gets with the ledger.
type judge struct {
	*child
	of    sessions
	again *atomic.Uint64 // what came again, marked
}

// drained tells whether a look at nothing that took until its deadline was the last one: a process
// that could not run looked at little, and what the dead left may still have to be found. since is
// when nobody wrote any more, of lifetime.
func (j *judge) drained(since time.Duration) bool {
	for i := range j.of.writers {
		for n := uint64(1); n <= j.of.last(i); n++ {
			if s := j.of.at(i, n); s.seen.Load() < s.published.Load() {
				return lifetime()-since > patience/4
			}
		}
	}
	return true
}

// number judges one entry, which is whole.
func (j *judge) number(name, number uint64, marked bool) {
	s, ok := j.of.named(name)
	if !ok {
		j.tell(kindUnpublished, "no writer is %#x", name)
		return
	}
	switch seen := s.seen.Load(); {
	case number > s.intent.Load():
		j.tell(kindUnpublished, "number %d of session %#x was never committed, only %d", number, name,
			s.intent.Load())
	case number == seen+1:
		s.seen.Store(number)
	case number <= seen && marked:
		j.again.Add(1)
	case number <= seen:
		j.tell(kindDuplicate, "number %d of session %#x came again without a mark; %d were seen",
			number, name, seen)
	default:
		s.seen.Store(number)
		j.tellN(kindLost, number-seen-1, "number %d of session %#x came after %d", number, name, seen)
	}
}

// untilSeen waits until the reader has seen everything: no later post helps a lost wake.
func (c *child) untilSeen(s session, upTo uint64) bool {
	for since := lifetime(); s.seen.Load() < upTo; nap(100 * time.Microsecond) {
		if c.ledger.phase() != phaseRun {
			return true
		}
		if lifetime()-since > patience {
			c.tell(kindHung, "%d of %d seen, and no more for %v", s.seen.Load(), upTo, patience)
			return false
		}
	}
	return true
}
