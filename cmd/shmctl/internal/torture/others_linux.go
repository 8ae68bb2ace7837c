package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/shmring/shmring/internal/crash"
)

// A place between users: writers of one user follow the readers of another, who come and go there,
// each with a queue of its own. What of a session is unread when both its writer and the reader
// that it was with are dead is gone with them, since its memory was; nothing else may be.

// Users of the processes, who have no name.
const (
	othersReaderUID = 65533
	othersWriterUID = 65534
)

// between is such a place.
type between struct {
	reader, writer string // roles
	share          string // what children are told: the directory where readers listen
	// How deaths are told.
	noticeReader, noticeWriter string
	ways                       [othersWays]string // how readers wait
	// toward are those of the ways in which they come to steps whose names begin so; to others
	// they come in every way.
	toward map[string][]int
}

// There is one for queues and one for event queues.
var (
	queuesBetween = between{reader: "others-reader", writer: "others-writer",
		share: "others-place", noticeReader: "others-reader-died",
		noticeWriter: "others-writer-died",
		ways:         [othersWays]string{"alone", "relays", "descriptors", "wait_sets", "channels"},
		toward: map[string][]int{"pipe": {othersFD}, "notify": {othersLast},
			"domain": {othersSet, othersLast}, "relay": {othersShared, othersSet, othersLast}}}
	eventsBetween = between{reader: "others-event-reader", writer: "others-event-writer",
		share: "others-event-place", noticeReader: "others-event-reader-died",
		noticeWriter: "others-event-writer-died",
		ways:         [othersWays]string{"alone", "relays", "descriptors", "wait_sets", "handlers"},
		toward: map[string][]int{"pipe": {othersFD}, "domain": {othersSet},
			"relay": {othersShared, othersSet},
			"event": {othersAlone, othersShared, othersFD, othersSet}}}
)

// Words of the readers. Generations stand for readers: that of each one's queue.
const (
	othersHolder      = iota // reader: generation of the queue at the place, 0 if there may be none
	othersPid                // reader: its process
	othersTurns              // reader: how often there was one
	othersEnded              // reader: everything is read
	othersRedelivered        // reader: entries that came again, marked
	othersBy                 // reader: how it waits
	othersDeaths             // supervisor: how many deaths of writers the log has
	othersLog                // supervisor: whose, and with which reader it surely was

	othersLeft   = othersLog + 2*othersLogged // reader: who left, or is about to, by generation
	othersPlayed = othersLeft + othersLefts   // reader: turns that read something, by way of waiting
	// reader: generation of the queue that it surely has, a word for each place
	othersHas = othersPlayed + othersWays

	othersReaderWords = othersHas + othersReaders
)

// Words of the writers. Sessions follow.
const (
	othersSessions    = 0                              // writer: sessions so far, a word each
	othersWith        = othersSessions + othersWriters // writer: reader that it surely is with, or 0
	othersFormer      = othersWith + othersWriters     // writer: the one before in its session, or 0
	othersStill       = othersFormer + othersWriters   // supervisor: nobody is to post
	othersCalms       = othersStill + 1                // supervisor: how often all was seen then
	othersHead        = othersCalms + 1
	othersWriterWords = othersHead + othersWriters*othersMost*othersSessionWords
)

const (
	othersReaders      = 2
	othersWriters      = 3
	othersMost         = 1 << 14 // sessions of one writer
	othersLogged       = 1 << 12 // deaths that the log holds, as a ring
	othersLefts        = 1 << 10 // readers that left, likewise
	othersSessionWords = 4
	othersSize         = 128
)

// leftWord is where a reader says that it leaves its queue to a successor. Others may have left
// since when a writer looks.
func leftWord(readers tally, generation uint64) *atomic.Uint64 {
	return &readers[othersLeft+generation%othersLefts]
}

// readerRole is the role of those who come and go. open makes a queue, and says how it is read.
func (b *between) readerRole(open func(*child) (othersReader, error), steps ...crash.Label) *role {
	return &role{name: b.reader, places: othersReaders, words: othersReaderWords,
		uid: othersReaderUID, asked: true, stops: true, drains: true, with: []string{b.writer},
		run: func(c *child) error { return c.othersRead(b, open) },
		steps: append(steps, crash.ParkStored, crash.ArmStored, crash.SleepNext, crash.SleepEnded,
			crash.MeetSending, crash.MeetSent, crash.MeetReceived, crash.AcceptTold,
			crash.DetachSilenced, crash.DeathProven, crash.DeathTelling, crash.DeathWritten,
			crash.OthersHeard, crash.PipeEmptied, crash.RelayHeard, crash.RelayMarked,
			crash.RelaySleep, crash.DomainMarked, crash.DomainRung, crash.DomainTaken,
			crash.DomainArmed, crash.DomainSleep, crash.DomainWoken),
		prepare: b.prepare, possession: b.readerHas, sum: b.sumReaders, lacks: lacksOthers,
		died: b.readerDied, check: b.checkReaders,
		starting: func(s *supervisor, p *proc) { // its predecessor's
			s.ledger.region(b.reader)[othersHas+p.index].Store(0)
		}}
}

// writerRole is the role of those who follow. follow attaches to the first reader.
func (b *between) writerRole(places int, follow func(*child, context.Context) (othersLink, error),
	steps ...crash.Label) *role {
	return &role{name: b.writer, places: places, words: othersWriterWords, uid: othersWriterUID,
		asked: true, stops: true, with: []string{b.reader},
		run: func(c *child) error { return c.othersWrite(b, follow) },
		steps: append(steps, crash.AttachClaimed, crash.AttachWritten, crash.AttachAnnounced,
			crash.Stamped, crash.PublishStored, crash.WriterClosing, crash.WriterReleased,
			crash.MeetSending, crash.MeetSent, crash.MeetReceived, crash.FollowFilled,
			crash.FollowTaken, crash.FollowClosed, crash.DeathProven, crash.DeathTelling,
			crash.DeathWritten, crash.OthersParked, crash.OthersCounted, crash.OthersPiped,
			crash.OthersAgain, crash.OthersWoken),
		starting: func(s *supervisor, p *proc) { // its predecessor's
			s.ledger.region(b.writer)[othersWith+p.index].Store(0)
			s.ledger.region(b.writer)[othersFormer+p.index].Store(0)
		},
		calm: b.calm, died: b.writerDied, settled: b.writerSettled, sum: b.sumWriters,
		check: b.checkWriters}
}

func othersReaderRole() *role {
	return queuesBetween.readerRole((*child).othersQueue, crash.TakeMarks, crash.PeekChosen,
		crash.PeekStored, crash.Releasing, crash.Released, crash.NotifyArmed, crash.NotifyFired)
}

func othersWriterRole() *role {
	return queuesBetween.writerRole(othersWriters, (*child).othersFollow, crash.Filled,
		crash.PublishEnded)
}

// othersSession is what is known of one time of a writer with its follower. home is the reader that
// has its lane, as far as the writer came to say so.
type othersSession struct{ intent, published, seen, home *atomic.Uint64 }

func othersSessionOf(words []atomic.Uint64, writer int, n uint64) othersSession {
	at := othersHead + (writer*othersMost+int(n))*othersSessionWords
	return othersSession{&words[at], &words[at+1], &words[at+2], &words[at+3]}
}

func othersName(writer int, n uint64) uint64 { return uint64(writer+1)<<32 | n }

func othersSplit(name uint64) (writer int, n uint64, ok bool) {
	writer, n = int(name>>32)-1, name&(1<<32-1)
	return writer, n, writer >= 0 && writer < othersWriters && n > 0 && n < othersMost
}

func lacksOthers() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can start processes of other users")
	}
	return nil
}

// prepare makes the directory where readers listen and writers find them.
func (b *between) prepare(s *supervisor) (undo func(), err error) {
	dir, err := os.MkdirTemp("", "torture-others-")
	if err != nil {
		return nil, err
	}
	undo = func() { _ = os.RemoveAll(dir) }
	s.share[b.share] = dir
	if err = os.Chown(dir, othersReaderUID, othersReaderUID); err != nil {
		return undo, fmt.Errorf("processes of other users: %w", err)
	}
	return undo, os.Chmod(dir, 0o755)
}

// readerHas: the place, and the writers that were with it.
func (b *between) readerHas(s *supervisor, p *proc) func() string {
	words, writers := s.ledger.region(b.reader), s.ledger.region(b.writer)
	had, turns := words[othersHolder].Load(), words[othersTurns].Load()
	if had == 0 || words[othersPid].Load() != uint64(p.PID()) {
		return func() string { return "" }
	}
	return func() string {
		if words[othersHolder].Load() != had || words[othersTurns].Load() != turns {
			return "another reader got its place"
		}
		for i := range othersWriters { // of a former reader one may not have noticed the end yet
			if with := writers[othersWith+i].Load(); with > had {
				return fmt.Sprintf("writer %d went to another reader", i)
			}
		}
		return ""
	}
}

// writerDied notes what is left to be read, and for the reader that it must learn of it.
func (b *between) writerDied(s *supervisor, p *proc) error {
	words, readers := s.ledger.region(b.writer), s.ledger.region(b.reader)
	if with := words[othersWith+p.index].Load(); with != 0 {
		for _, q := range s.procs {
			if q.role.name != b.reader {
				continue
			}
			if has := &readers[othersHas+q.index]; has.Load() == with {
				s.expect(p, q, b.noticeWriter, func() bool { return has.Load() == with })
			}
		}
		n := readers[othersDeaths].Load()
		at := othersLog + 2*(n%othersLogged)
		readers[at].Store(uint64(p.PID()))
		readers[at+1].Store(with)
		readers[othersDeaths].Store(n + 1)
	}
	p.left = bequest{since: lifetime()}
	return nil
}

// readerDied demands that each writer that surely was with it is told.
func (b *between) readerDied(s *supervisor, p *proc) error {
	readers, writers := s.ledger.region(b.reader), s.ledger.region(b.writer)
	had := readers[othersHas+p.index].Load()
	if had == 0 || leftWord(readers, had).Load() == had {
		return nil
	}
	for _, q := range s.procs {
		if q.role.name != b.writer {
			continue
		}
		session := &writers[othersSessions+q.index]
		n := session.Load() // first: what it was with in the next one says nothing of this one
		if writers[othersWith+q.index].Load() == had ||
			writers[othersFormer+q.index].Load() == had { // else it is with the next one by now
			s.expect(p, q, b.noticeReader, func() bool { return session.Load() == n })
		}
	}
	return nil
}

// writerSettled tells whether the next writer may come: its predecessor's entries are seen,
// or gone with the reader that had them.
func (b *between) writerSettled(s *supervisor, p *proc) bool {
	words := s.ledger.region(b.writer)
	n := words[othersSessions+p.index].Load()
	if n == 0 || n >= othersMost {
		return true
	}
	e := othersSessionOf(words, p.index, n)
	want, seen := e.published.Load(), e.seen.Load()
	if seen >= want || b.gone(s, e) {
		return true
	}
	if lifetime()-p.left.since < patience/2 {
		return false
	}
	s.broken(p.role.name, kindHung, 1, "of writer %d, which is dead, %d of %d were seen in %v "+
		"(step %v)", p.index, seen, want, patience/2, p.step)
	return true
}

// gone tells that the reader which had a session's lane has no successor in it, and never
// will, as the writer is dead.
func (b *between) gone(s *supervisor, e othersSession) bool {
	holder := s.ledger.region(b.reader)[othersHolder].Load()
	return holder != 0 && e.home.Load() != holder
}

func (b *between) sumReaders(s *supervisor, r *RoleReport) {
	words := s.ledger.region(b.reader)
	r.Redelivered = words[othersRedelivered].Load()
	r.Counts["turns"] = words[othersTurns].Load()
	for way, name := range b.ways {
		r.Counts[name] = words[othersPlayed+way].Load()
	}
}

func (b *between) sumWriters(s *supervisor, r *RoleReport) {
	words := s.ledger.region(b.writer)
	sessions := uint64(0)
	for i := range othersWriters {
		last := min(words[othersSessions+i].Load(), othersMost-1)
		sessions += last
		for n := uint64(1); n <= last; n++ {
			e := othersSessionOf(words, i, n)
			published, seen := e.published.Load(), e.seen.Load()
			r.Published += published
			r.InDoubt += max(published, e.intent.Load()) - published
			r.Read += seen
			if seen < published && b.gone(s, e) {
				r.Gone += published - seen
			}
		}
	}
	r.Counts["sessions"], r.Counts["calms"] = sessions, words[othersCalms].Load()
}

func (b *between) checkReaders(s *supervisor) {
	words := s.ledger.region(b.reader)
	if words[othersEnded].Load() == 0 {
		s.broken(b.reader, kindHung, 1, "no reader came to the end")
	}
	for i, name := range b.ways {
		if words[othersTurns].Load() >= othersMany && words[othersPlayed+i].Load() == 0 {
			s.broken(b.reader, kindFailed, 1, "in %d turns nobody read anything who waits so: %s",
				words[othersTurns].Load(), name)
		}
	}
}

// checkWriters compares the ledger at the end. The last reader has read all that it had.
func (b *between) checkWriters(s *supervisor) {
	words := s.ledger.region(b.writer)
	for i := range othersWriters {
		for n := uint64(1); n <= words[othersSessions+i].Load() && n < othersMost; n++ {
			e := othersSessionOf(words, i, n)
			published, seen := e.published.Load(), e.seen.Load()
			if seen < published && !b.gone(s, e) {
				s.broken(b.writer, kindLost, published-seen, "of writer %d session %d only "+
					"%d of %d were seen by the reader that has its lane", i, n, seen, published)
			}
		}
	}
}
