package torture

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/shm/crash"
)

// A queue between users: writers of one user follow the readers of another, who come and go at a
// place, each with a queue of its own. What of a session is unread when both its writer and the
// reader that it was with are dead is gone with them, since its memory was; nothing else may be.

// Users of the processes, who have no name.
const (
	othersReaderUID = 65533
	othersWriterUID = 65534
)

// Words of the readers. Generations stand for readers: that of each one's queue.
const (
	othersHolder      = iota // reader: generation of the queue at the place, 0 if there may be none
	othersPid                // reader: its process
	othersTurns              // reader: how often there was one
	othersEnded              // reader: everything is read
	othersRedelivered        // reader: entries that came again, marked
	othersDeaths             // supervisor: how many deaths of writers the log has
	othersLog                // supervisor: whose, and with which reader it surely was

	othersLeft   = othersLog + 2*othersLogged // reader: who left, or is about to, by generation
	othersPlayed = othersLeft + othersLefts   // reader: turns that read something, by way of waiting
	// reader: generation of the queue that it surely has, a word for each place
	othersHas = othersPlayed + int(othersWays)

	othersReaderWords = othersHas + othersReaders
)

// Words of the writers. Sessions follow.
const (
	othersSessions    = 0                              // writer: sessions so far, a word each
	othersWith        = othersSessions + othersWriters // writer: reader that it surely is with, or 0
	othersFormer      = othersWith + othersWriters     // writer: the one before in its session, or 0
	othersHead        = othersFormer + othersWriters   //
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

// How deaths are told between users.
const (
	noticeOthersWriter = "others-writer-died"
	noticeOthersReader = "others-reader-died"
)

// othersPlace is what children are told: the directory where readers listen.
const othersPlace = "others-place"

func othersReaderRole() *role {
	return &role{name: "others-reader", places: othersReaders, words: othersReaderWords,
		uid: othersReaderUID, asked: true, stops: true, drains: true, run: (*child).othersRead,
		steps: []crash.Label{crash.TakeMarks, crash.PeekChosen, crash.PeekStored,
			crash.Releasing, crash.Released, crash.ParkStored, crash.ArmStored, crash.SleepNext,
			crash.SleepEnded, crash.MeetSending, crash.MeetSent, crash.MeetReceived,
			crash.AcceptTold, crash.DetachSilenced, crash.DeathProven, crash.DeathTelling,
			crash.DeathWritten, crash.OthersHeard, crash.PipeEmptied, crash.RelayHeard,
			crash.RelayMarked, crash.RelaySleep, crash.DomainMarked, crash.DomainRung,
			crash.DomainTaken, crash.DomainArmed, crash.DomainSleep, crash.DomainWoken,
			crash.NotifyArmed, crash.NotifyFired},
		prepare: prepareOthers, possession: othersReaderHas, sum: sumOthersReaders,
		lacks: lacksOthers, died: othersReaderDied,
		starting: func(s *supervisor, p *proc) { // its predecessor's
			s.ledger.region("others-reader")[othersHas+p.index].Store(0)
		},
		check: checkOthersReaders}
}

func othersWriterRole() *role {
	return &role{name: "others-writer", places: othersWriters, words: othersWriterWords,
		uid: othersWriterUID, asked: true, stops: true, run: (*child).othersWrite,
		with: []string{"others-reader"},
		steps: []crash.Label{crash.AttachClaimed, crash.AttachWritten, crash.AttachAnnounced,
			crash.Filled, crash.Stamped, crash.PublishStored, crash.PublishEnded,
			crash.WriterClosing, crash.WriterReleased, crash.MeetSending, crash.MeetSent,
			crash.MeetReceived, crash.FollowFilled, crash.FollowTaken, crash.FollowClosed,
			crash.DeathProven, crash.DeathTelling, crash.DeathWritten, crash.OthersParked,
			crash.OthersCounted, crash.OthersPiped, crash.OthersAgain, crash.OthersWoken},
		starting: func(s *supervisor, p *proc) { // its predecessor's
			s.ledger.region("others-writer")[othersWith+p.index].Store(0)
			s.ledger.region("others-writer")[othersFormer+p.index].Store(0)
		},
		died: othersWriterDied, settled: othersWriterSettled, sum: sumOthersWriters,
		check: checkOthersWriters}
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

// prepareOthers makes the directory where readers listen and writers find them.
func prepareOthers(s *supervisor) (undo func(), err error) {
	dir, err := os.MkdirTemp("", "torture-others-")
	if err != nil {
		return nil, err
	}
	undo = func() { _ = os.RemoveAll(dir) }
	s.share[othersPlace] = dir
	if err = os.Chown(dir, othersReaderUID, othersReaderUID); err != nil {
		return undo, fmt.Errorf("processes of other users: %w", err)
	}
	return undo, os.Chmod(dir, 0o755)
}

// othersReaderHas: the place, and the writers that were with it.
func othersReaderHas(s *supervisor, p *proc) func() string {
	words, writers := s.ledger.region("others-reader"), s.ledger.region("others-writer")
	had, turns := words[othersHolder].Load(), words[othersTurns].Load()
	if had == 0 || words[othersPid].Load() != uint64(p.pid()) {
		return func() string { return "" }
	}
	return func() string {
		if words[othersHolder].Load() != had || words[othersTurns].Load() != turns {
			return "another reader got its place"
		}
		for i := range othersWriters {
			if with := writers[othersWith+i].Load(); with != 0 && with != had {
				return fmt.Sprintf("writer %d went to another reader", i)
			}
		}
		return ""
	}
}

// othersWriterDied notes what is left to be read, and for the reader that it must learn of it.
func othersWriterDied(s *supervisor, p *proc) error {
	words, readers := s.ledger.region("others-writer"), s.ledger.region("others-reader")
	if with := words[othersWith+p.index].Load(); with != 0 {
		for _, q := range s.procs {
			if q.role.name != "others-reader" {
				continue
			}
			if has := &readers[othersHas+q.index]; has.Load() == with {
				s.expect(p, q, noticeOthersWriter, func() bool { return has.Load() == with })
			}
		}
		n := readers[othersDeaths].Load()
		at := othersLog + 2*(n%othersLogged)
		readers[at].Store(uint64(p.pid()))
		readers[at+1].Store(with)
		readers[othersDeaths].Store(n + 1)
	}
	p.left = bequest{since: time.Now()}
	return nil
}

// othersReaderDied demands that each writer that surely was with it is told.
func othersReaderDied(s *supervisor, p *proc) error {
	readers, writers := s.ledger.region("others-reader"), s.ledger.region("others-writer")
	had := readers[othersHas+p.index].Load()
	if had == 0 || leftWord(readers, had).Load() == had {
		return nil
	}
	for _, q := range s.procs {
		if q.role.name != "others-writer" {
			continue
		}
		session := &writers[othersSessions+q.index]
		n := session.Load() // first: what it was with in the next one says nothing of this one
		if writers[othersWith+q.index].Load() == had ||
			writers[othersFormer+q.index].Load() == had { // else it is with the next one by now
			s.expect(p, q, noticeOthersReader, func() bool { return session.Load() == n })
		}
	}
	return nil
}

// othersWriterSettled tells whether the next writer may come: its predecessor's entries are seen,
// or gone with the reader that had them.
func othersWriterSettled(s *supervisor, p *proc) bool {
	words := s.ledger.region("others-writer")
	n := words[othersSessions+p.index].Load()
	if n == 0 || n >= othersMost {
		return true
	}
	e := othersSessionOf(words, p.index, n)
	want, seen := e.published.Load(), e.seen.Load()
	if seen >= want || othersGone(s, e) {
		return true
	}
	if time.Since(p.left.since) < patience/2 {
		return false
	}
	s.broken(p.role.name, kindHung, 1, "of writer %d, which is dead, %d of %d were seen in %v "+
		"(step %v)", p.index, seen, want, patience/2, p.step)
	return true
}

// othersGone tells that the reader which had a session's lane has no successor in it, and never
// will, as the writer is dead.
func othersGone(s *supervisor, e othersSession) bool {
	holder := s.ledger.region("others-reader")[othersHolder].Load()
	return holder != 0 && e.home.Load() != holder
}

func sumOthersReaders(s *supervisor, r *RoleReport) {
	words := s.ledger.region("others-reader")
	r.Redelivered = words[othersRedelivered].Load()
	r.Counts["turns"] = words[othersTurns].Load()
	for way, name := range othersWayNames {
		r.Counts[name] = words[othersPlayed+way].Load()
	}
}

func sumOthersWriters(s *supervisor, r *RoleReport) {
	words := s.ledger.region("others-writer")
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
			if seen < published && othersGone(s, e) {
				r.Gone += published - seen
			}
		}
	}
	r.Counts["sessions"] = sessions
}

func checkOthersReaders(s *supervisor) {
	words := s.ledger.region("others-reader")
	if words[othersEnded].Load() == 0 {
		s.broken("others-reader", kindHung, 1, "no reader came to the end")
	}
	for i, name := range othersWayNames {
		if words[othersTurns].Load() >= othersMany && words[othersPlayed+i].Load() == 0 {
			s.broken("others-reader", kindFailed, 1, "in %d turns nobody read anything who waits so: %s",
				words[othersTurns].Load(), name)
		}
	}
}

// checkOthersWriters compares the ledger at the end. The last reader has read all that it had.
func checkOthersWriters(s *supervisor) {
	words := s.ledger.region("others-writer")
	for i := range othersWriters {
		for n := uint64(1); n <= words[othersSessions+i].Load() && n < othersMost; n++ {
			e := othersSessionOf(words, i, n)
			published, seen := e.published.Load(), e.seen.Load()
			if seen < published && !othersGone(s, e) {
				s.broken("others-writer", kindLost, published-seen, "of writer %d session %d only "+
					"%d of %d were seen by the reader that has its lane", i, n, seen, published)
			}
		}
	}
}
