package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

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
	ways                       [othersWays]way // how readers wait
	// toward are those of the ways in which they come to steps whose names begin so; to others
	// they come in every way.
	toward map[string][]int
}

// How a reader waits for writers of another user for as long as it has the place.
const (
	othersAlone  = iota // in a read: its thread sleeps on words of the writers
	othersShared        // in a read as one of several goroutines: a relay passes rings on
	othersFD            // on the descriptor, which pipes of lanes make readable
	othersSet           // in a wait set, on the bell of the process, through a relay
	othersLast          // of queues on a channel, likewise; of event queues in a handler
	othersWays
)

func othersWaysTo(last way) [othersWays]way {
	return [othersWays]way{{"alone", (*reading).byRead}, {"relays", (*reading).byRead},
		{"descriptors", (*reading).byDescriptor}, {"wait_sets", (*reading).bySet}, last}
}

// othersMany are so many turns that each way was taken.
const othersMany = 2000

// There is one for queues and one for event queues.
var (
	queuesBetween = between{reader: "others-reader", writer: "others-writer",
		share: "others-place", noticeReader: "others-reader-died",
		noticeWriter: "others-writer-died",
		ways:         othersWaysTo(way{"channels", (*reading).byChannel}),
		toward: map[string][]int{"pipe": {othersFD}, "notify": {othersLast},
			"domain": {othersSet, othersLast}, "relay": {othersShared, othersSet, othersLast}}}
	eventsBetween = between{reader: "others-event-reader", writer: "others-event-writer",
		share: "others-event-place", noticeReader: "others-event-reader-died",
		noticeWriter: "others-event-writer-died",
		ways:         othersWaysTo(way{"handlers", (*reading).byHandler}),
		toward: map[string][]int{"pipe": {othersFD}, "domain": {othersSet},
			"relay": {othersShared, othersSet},
			"event": {othersAlone, othersShared, othersFD, othersSet}}}
)

// Words of the readers, behind those of what one has at a time: the place. Generations stand for
// readers: that of each one's queue.
const (
	othersHolder = heldWords + iota // reader: generation of the last queue at the place, or 0
	othersBy                        // reader: how it waits
	othersLeft                      // reader: who left, or is about to, by generation

	othersPlayed = othersLeft + othersLefts // reader: turns that read something, by way of waiting
	// reader: generation of the queue that it surely has, a word for each place
	othersHas = othersPlayed + othersWays

	othersReaderWords = othersHas + othersReaders
)

// Words of the writers, behind their sessions.
const (
	othersWith   = 0                            // writer: reader that it surely is with, or 0
	othersFormer = othersWith + othersWriters   // writer: the one before in its session, or 0
	othersStill  = othersFormer + othersWriters // supervisor: nobody is to post
	othersCalms  = othersStill + 1              // supervisor: how often all was seen then
	othersShares = othersCalms + 1
)

// shared returns those words.
func (b *between) shared(l *ledger) tally {
	return tally(l.region(b.writer))[sessionsLength(roleOf(b.writer).places):]
}

const (
	othersReaders = 2
	othersWriters = 3
	othersLefts   = 1 << 10 // readers that left, as a ring
	othersSize    = 128
)

// leftWord is where a reader says that it leaves its queue to a successor. Others may have left
// since when a writer looks.
func leftWord(readers tally, generation uint64) *atomic.Uint64 {
	return &readers[othersLeft+generation%othersLefts]
}

// readerRole is the role of those who come and go. open makes a queue.
func (b *between) readerRole(open othersOpen, steps ...crash.Label) *role {
	r := holder("turns", role{name: b.reader, counts: countWays(othersPlayed, b.ways[:]...),
		places: othersReaders, words: othersReaderWords, uid: othersReaderUID, between: b, asked: true,
		with: []string{b.writer}, run: func(c *child) error { return c.othersRead(open) },
		steps: append(steps, crash.ParkStored, crash.ArmStored, crash.SleepNext, crash.SleepEnded,
			crash.MeetSending, crash.MeetSent, crash.MeetReceived, crash.AcceptTold,
			crash.DetachSilenced, crash.DeathProven, crash.DeathTelling, crash.DeathWritten,
			crash.OthersHeard, crash.PipeEmptied, crash.RelayHeard, crash.RelayMarked,
			crash.RelaySleep, crash.DomainMarked, crash.DomainRung, crash.DomainTaken,
			crash.DomainArmed, crash.DomainSleep, crash.DomainWoken),
		prepare: b.prepare, lacks: lacksOthers, died: b.readerDied,
		starting: func(s *supervisor, p *proc) { // its predecessor's
			s.ledger.region(b.reader)[othersHas+p.index].Store(0)
		}})
	r.possession, r.check = b.readerHas, b.checkReaders
	return r
}

// writerRole is the role of those who follow. follow attaches to the first reader.
func (b *between) writerRole(places int, follow func(*child, context.Context) (lane, error),
	steps ...crash.Label) *role {
	return posting(role{name: b.writer, places: places, words: othersShares,
		uid: othersWriterUID, between: b, asked: true, with: []string{b.reader},
		run: func(c *child) error { return c.othersWrite(follow) },
		steps: append(steps, crash.AttachClaimed, crash.AttachWritten, crash.AttachAnnounced,
			crash.Stamped, crash.PublishStored, crash.WriterClosing, crash.WriterReleased,
			crash.MeetSending, crash.MeetSent, crash.MeetReceived, crash.FollowFilled,
			crash.FollowTaken, crash.FollowClosed, crash.DeathProven, crash.DeathTelling,
			crash.DeathWritten, crash.OthersParked, crash.OthersCounted, crash.OthersPiped,
			crash.OthersAgain, crash.OthersWoken),
		starting: func(s *supervisor, p *proc) { // its predecessor's
			b.shared(s.ledger)[othersWith+p.index].Store(0)
			b.shared(s.ledger)[othersFormer+p.index].Store(0)
		},
		calm: b.calm, died: b.writerDied,
		counts: map[string]int{"calms": sessionsLength(places) + othersCalms}})
}

func othersReaderRole() *role {
	return queuesBetween.readerRole((*child).othersQueue, crash.TakeMarks, crash.PeekChosen,
		crash.PeekStored, crash.Releasing, crash.Released, crash.NotifyArmed, crash.NotifyFired)
}

func othersWriterRole() *role {
	return queuesBetween.writerRole(othersWriters, (*child).othersFollow, crash.Filled,
		crash.PublishEnded)
}

// Event queues are those of the event queue that has a name, and so are their events. Readers peek
// at an event, look at it, and take it then; or a handler looks at it.
const othersEventWriters = 2

func othersEventReaderRole() *role {
	return eventsBetween.readerRole((*child).othersEvents, crash.EventCopied, crash.EventPinned,
		crash.EventReleased)
}

func othersEventWriterRole() *role {
	return eventsBetween.writerRole(othersEventWriters, (*child).othersFollowEvents,
		crash.EventFilled, crash.EventPublished)
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
	place, words, writers := heldPossession(s, p), s.ledger.region(b.reader), b.shared(s.ledger)
	had := words[othersHolder].Load()
	if place == nil || words[othersHas+p.index].Load() != had {
		return nil
	}
	return func() string {
		if lost := place(); lost != "" || words[othersHolder].Load() != had {
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

// writerDied notes what is left to be read, and demands that the reader is told.
func (b *between) writerDied(s *supervisor, p *proc) error {
	readers := s.ledger.region(b.reader)
	if with := b.shared(s.ledger)[othersWith+p.index].Load(); with != 0 {
		for _, q := range s.procs {
			if q.role.name != b.reader {
				continue
			}
			if has := &readers[othersHas+q.index]; has.Load() == with {
				s.expect(p, q, b.noticeWriter, func() bool { return has.Load() == with })
			}
		}
	}
	return sessionsDied(s, p)
}

// readerDied demands that each writer that surely was with it is told.
func (b *between) readerDied(s *supervisor, p *proc) error {
	readers, writers := s.ledger.region(b.reader), b.shared(s.ledger)
	had := readers[othersHas+p.index].Load()
	if had == 0 || leftWord(readers, had).Load() == had {
		return nil
	}
	for _, q := range s.procs {
		if q.role.name != b.writer {
			continue
		}
		session := s.ledger.sessions(b.writer).count(q.index)
		n := session.Load() // first: what it was with in the next one says nothing of this one
		if writers[othersWith+q.index].Load() == had ||
			writers[othersFormer+q.index].Load() == had { // else it is with the next one by now
			s.expect(p, q, b.noticeReader, func() bool { return session.Load() == n })
		}
	}
	return nil
}

func (b *between) checkReaders(s *supervisor, r *role) {
	checkHeld(s, r)
	words := s.ledger.region(b.reader)
	for i, way := range b.ways {
		if words[heldTimes].Load() >= othersMany && words[othersPlayed+i].Load() == 0 {
			s.broken(b.reader, kindFailed, 1, "in %d turns nobody read anything who waits so: %s",
				words[heldTimes].Load(), way.name)
		}
	}
}

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
	*now = standing{holder: readers[othersHolder].Load(), pid: readers[heldBy].Load()}
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
		waits := e.reader.Load() == now.holder // else it is on its way to the reader
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
