package torture

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/shm/crash"
)

// The queue that has a name, with writers and readers. Words of the readers, who store them:
const (
	readerHolder      = iota // who has the queue, 0 while nobody surely does
	readerAdoptions          // how often that happened
	readerEnded              // the queue is destroyed
	readerRedelivered        // entries that came again, marked
	readerWords
)

// Words of the writers. Sessions follow.
const (
	writerLaneOwner = 0                          // writers: what session has the lane
	writerSessions  = writerLaneOwner + maxLanes // writers: sessions so far, a word each
	writerLane      = writerSessions + writers   // writers: lane that it surely has, + 1, or 0
	writerHead      = writerLane + writers
	writerWords     = writerHead + writers*maxSessions*sessionWords
)

const (
	readers     = 2
	writers     = 4
	maxLanes    = 8
	maxSessions = 1 << 16 // of one writer
	queueSize   = 256
)

// noticeAdopted is how the death of a reader is told by the one that got its queue.
const noticeAdopted = "queue-adopted"

func readerRole() *role {
	return &role{name: "reader", places: readers, words: readerWords, stops: true, drains: true,
		run: (*child).read,
		steps: []crash.Label{crash.ClaimLocked, crash.ClaimStored, crash.ClaimLeft,
			crash.AdoptClaimed, crash.AdoptStarted, crash.ParkStored, crash.ParkPaid,
			crash.ArmStored, crash.SleepNext, crash.SleepEnded, crash.TakeMarks,
			crash.PeekChosen, crash.PeekStored, crash.Releasing, crash.Released,
			crash.DetachSilenced},
		died: readerDied, possession: readerPossession, sum: sumReaders, check: checkReaders}
}

func writerRole() *role {
	return &role{name: "writer", places: writers, words: writerWords, stops: true,
		run: (*child).write, with: []string{"reader"},
		steps: []crash.Label{crash.ClaimLocked, crash.ClaimStored, crash.ClaimLeft,
			crash.AttachClaimed, crash.AttachWritten, crash.AttachAnnounced, crash.Filled,
			crash.Stamped, crash.PublishStored, crash.RingParked, crash.RingMarked,
			crash.RingWoken, crash.PublishEnded, crash.WriterClosing, crash.WriterReleased},
		starting: func(s *supervisor, p *proc) { // what its predecessor had is anybody's
			s.queue.writers[writerLane+p.index].Store(0)
		},
		prepare:    prepareQueue,
		died:       writerDied,
		settled:    writerSettled,
		possession: writerPossession, sum: sumWriters, check: checkWriters}
}

// queueState is what the supervisor knows of the queue that has a name.
type queueState struct {
	readers, writers []atomic.Uint64
	// exact are sessions of which nothing may come beyond what is known as published.
	exact map[uint64]bool
}

func prepareQueue(s *supervisor) (func(), error) {
	s.queue = queueState{s.ledger.region("reader"), s.ledger.region("writer"), map[uint64]bool{}}
	return nil, nil
}

// sessionOf returns the n-th session of a writer.
func sessionOf(words []atomic.Uint64, writer int, n uint64) session {
	return sessionAt(words[writerHead:], writer*maxSessions+int(n))
}

// sessionName packs whose session it is, as entries carry it; 0 is nobody's.
func sessionName(writer int, n uint64) uint64 { return uint64(writer+1)<<32 | n }

func splitSession(name uint64) (writer int, n uint64, ok bool) {
	writer, n = int(name>>32)-1, name&(1<<32-1)
	return writer, n, writer >= 0 && writer < writers && n > 0 && n < maxSessions
}

// readerDied demands a successor of one that had the queue.
func readerDied(s *supervisor, p *proc) error {
	if s.ledger.region("reader")[readerHolder].Load() == uint64(p.pid()) {
		s.mu.Lock()
		s.notes.expect(p.pid(), noticeAdopted)
		s.mu.Unlock()
	}
	return nil
}

// readerPossession: the queue.
func readerPossession(s *supervisor, p *proc) func() string {
	words := s.ledger.region("reader")
	if words[readerHolder].Load() != uint64(p.pid()) {
		return func() string { return "" }
	}
	had := words[readerAdoptions].Load()
	return func() string {
		if words[readerHolder].Load() != uint64(p.pid()) || words[readerAdoptions].Load() > had+1 {
			return "another reader got the queue"
		}
		return ""
	}
}

// writerPossession: its lane.
func writerPossession(s *supervisor, p *proc) func() string {
	words := s.queue.writers
	if lane := words[writerLane+p.index].Load(); lane != 0 {
		owner := &words[writerLaneOwner+int(lane)-1]
		had := owner.Load()
		if writer, _, ok := splitSession(had); ok && writer == p.index {
			return func() string {
				if owner.Load() != had {
					return "another writer got its lane"
				}
				return ""
			}
		}
	}
	return func() string { return "" }
}

func sumReaders(s *supervisor, r *RoleReport) {
	words := s.ledger.region("reader")
	r.Redelivered = words[readerRedelivered].Load()
	r.Counts["adoptions"] = words[readerAdoptions].Load()
}

func sumWriters(s *supervisor, r *RoleReport) {
	words := s.queue.writers
	sessions := uint64(0)
	for i := range writers {
		last := min(words[writerSessions+i].Load(), maxSessions-1)
		sessions += last
		for n := uint64(1); n <= last; n++ {
			e := sessionOf(words, i, n)
			published := e.published.Load()
			r.Published += published
			r.InDoubt += max(published, e.intent.Load()) - published
			r.Read += e.seen.Load()
		}
	}
	r.Counts["sessions"] = sessions
}

func checkReaders(s *supervisor) {
	if s.ledger.region("reader")[readerEnded].Load() == 0 {
		s.broken("reader", kindHung, 1, "no reader came to the end of the queue")
	}
}

// checkWriters compares the ledger at the end.
func checkWriters(s *supervisor) {
	words := s.queue.writers
	for i := range writers {
		for n := uint64(1); n <= words[writerSessions+i].Load() && n < maxSessions; n++ {
			e := sessionOf(words, i, n)
			published, seen := e.published.Load(), e.seen.Load()
			if s.queue.exact[sessionName(i, n)] && seen > published {
				s.broken("writer", kindUnpublished, seen-published, "of writer %d session %d, which "+
					"died before it published more than %d, %d were seen", i, n, published, seen)
			}
			if seen < published {
				s.broken("writer", kindLost, published-seen, "of writer %d session %d only %d of %d "+
					"were seen", i, n, seen, published)
			}
		}
	}
}

// afterPublish are steps at which the tail is stored: what stands before it must be read.
var afterPublish = map[crash.Label]bool{crash.PublishStored: true, crash.RingParked: true,
	crash.RingMarked: true, crash.RingWoken: true, crash.PublishEnded: true}

// beforePublish are steps at which it is not stored yet: no more may ever be read of the session.
var beforePublish = map[crash.Label]bool{crash.Filled: true, crash.Stamped: true}

// bequest is what a writer that died has left to be read: its successor's lane would be looked at
// for that one's sake.
type bequest struct {
	want  uint64 // 0 is nothing
	of    session
	since time.Time
}

func (b *bequest) seen() bool { return b.want == 0 || b.of.seen.Load() >= b.want }

// writerDied notes what is left to be read. At a step it is known exactly whether the entries that
// the writer was posting are published.
func writerDied(s *supervisor, p *proc) error {
	n := s.queue.writers[writerSessions+p.index].Load()
	if n == 0 || n >= maxSessions {
		return nil
	}
	of := sessionOf(s.queue.writers, p.index, n)
	p.left = bequest{of.published.Load(), of, time.Now()}
	if !p.shot && beforePublish[p.step] {
		s.queue.exact[sessionName(p.index, n)] = true
	} else if !p.shot && afterPublish[p.step] && p.left.want < of.intent.Load() {
		p.left.want++ // at least
	}
	if p.left.want == 0 || s.frozen != nil { // a reader that is stopped sees nothing
		return nil
	}
	if s.rnd.IntN(8) == 0 || !p.shot && afterPublish[p.step] && s.rnd.IntN(2) == 0 {
		return s.hush()
	}
	return nil
}

// writerSettled tells whether the next writer may come: the reader has seen all of its predecessor,
// though that could not ring any more.
func writerSettled(s *supervisor, p *proc) bool {
	b := &p.left
	if !b.seen() && time.Since(b.since) < patience/2 {
		return false
	}
	if !b.seen() {
		s.broken("writer", kindHung, 1, "of writer %d, which is dead, %d of %d were seen in %v "+
			"(step %v)", p.index, b.of.seen.Load(), b.want, patience/2, p.step)
	}
	b.want = 0
	return true
}

// hush has all writers keep still until everything is seen. Nobody is killed meanwhile, so no
// successor and no later post looks where the reader should have looked.
func (s *supervisor) hush() error {
	s.ledger.word(wordHush).Store(1)
	defer s.ledger.word(wordHush).Store(0)
	for since := time.Now(); ; time.Sleep(time.Millisecond) {
		missing := s.unseen()
		if missing == "" {
			return nil
		}
		if time.Since(since) > patience/2 {
			s.broken("writer", kindHung, 1, "nobody posts any more, and %s in %v", missing,
				patience/2)
			return nil
		}
		for _, p := range s.procs { // a reader may still die at its step
			if p.role.name == "reader" && p.ended() {
				if err := s.revive(p); err != nil {
					return err
				}
			}
		}
	}
}

// unseen says what the reader has not seen yet.
func (s *supervisor) unseen() string {
	words := s.queue.writers
	for i := range writers {
		n := words[writerSessions+i].Load()
		if n == 0 || n >= maxSessions {
			continue
		}
		e := sessionOf(words, i, n)
		if want, seen := e.published.Load(), e.seen.Load(); seen < want {
			return fmt.Sprintf("of writer %d only %d of %d were seen", i, seen, want)
		}
	}
	for _, p := range s.procs {
		if !p.left.seen() {
			return fmt.Sprintf("of writer %d, which died at step %v, only %d of %d were seen",
				p.index, p.step, p.left.of.seen.Load(), p.left.want)
		}
	}
	return ""
}
