package torture

import (
	"fmt"
	"time"

	"github.com/shmring/shmring/internal/crash"
)

const (
	readers   = 2
	writers   = 4
	maxLanes  = 8
	queueSize = 256
)

// Words of the writers of the queue that has a name, who store them. Sessions come before.
var (
	writerLaneOwner = sessionsLength(writers)    // what session has the lane
	writerLane      = writerLaneOwner + maxLanes // lane that a writer surely has, + 1, or 0
	writerWords     = writerLane + writers
)

func readerRole() *role {
	return &role{name: "reader", places: readers, words: heldWords, stops: true, drains: true,
		run: (*child).read, with: []string{"writer"},
		steps: []crash.Label{crash.ClaimLocked, crash.ClaimStored, crash.ClaimLeft,
			crash.AdoptClaimed, crash.AdoptStarted, crash.ParkStored, crash.ParkPaid,
			crash.ArmStored, crash.SleepNext, crash.SleepEnded, crash.TakeMarks,
			crash.PeekChosen, crash.PeekStored, crash.Releasing, crash.Released,
			crash.DetachSilenced},
		died: readerDied, possession: heldPossession, sum: sumHeld("reader"),
		check: checkHeld("reader")}
}

func writerRole() *role {
	return &role{name: "writer", places: writers, words: writerWords, stops: true,
		run: (*child).write, with: []string{"reader"},
		steps: []crash.Label{crash.ClaimLocked, crash.ClaimStored, crash.ClaimLeft,
			crash.AttachClaimed, crash.AttachWritten, crash.AttachAnnounced, crash.Filled,
			crash.Stamped, crash.PublishStored, crash.RingParked, crash.RingMarked,
			crash.RingWoken, crash.PublishEnded, crash.WriterClosing, crash.WriterReleased},
		starting: func(s *supervisor, p *proc) { // what its predecessor had is anybody's
			s.ledger.region("writer")[writerLane+p.index].Store(0)
		},
		died: writerDied, settled: sessionsSettled, possession: writerPossession,
		sum: sumSessions("writer"), check: checkSessions("writer")}
}

// writerPossession: its lane.
func writerPossession(s *supervisor, p *proc) func() string {
	words := s.ledger.region("writer")
	if lane := words[writerLane+p.index].Load(); lane != 0 {
		owner := &words[writerLaneOwner+int(lane)-1]
		if had := owner.Load(); int(had>>32)-1 == p.index {
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

// writerDied demands that the reader is told of one that had a lane, notes what is left to be read,
// and has everybody keep still now and then.
func writerDied(s *supervisor, p *proc) error {
	if s.ledger.region("writer")[writerLane+p.index].Load() != 0 {
		s.expectAll(p, "reader", noticeWriter)
	}
	s.ledger.sessions("writer").died(s, p)
	if p.left.want == 0 || s.frozen != nil { // a reader that is stopped sees nothing
		return nil
	}
	if s.rnd.IntN(8) == 0 || !p.shot && afterPublish[p.step] && s.rnd.IntN(2) == 0 {
		return s.hush()
	}
	return nil
}

// hush has all writers keep still until everything is seen. Nobody is killed meanwhile, so no
// successor and no later post looks where the reader should have looked.
func (s *supervisor) hush() error {
	s.ledger.word(wordHush).Store(1)
	defer s.ledger.word(wordHush).Store(0)
	ss := s.ledger.sessions("writer")
	for since := lifetime(); ; time.Sleep(time.Millisecond) {
		s.overdue(lifetime())
		missing := s.unseen(ss)
		if missing == "" {
			return nil
		}
		if lifetime()-since > patience/2 {
			s.broken("writer", kindHung, 1, "nobody posts any more, and %s in %v", missing,
				patience/2)
			return nil
		}
		if err := s.reviveBut("writer"); err != nil {
			return err
		}
	}
}

// reviveBut starts those again that died at a step, but for those of a role.
func (s *supervisor) reviveBut(role string) error {
	for _, p := range s.procs {
		if p.role.name != role && p.fell() {
			if err := s.revive(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// unseen says what the reader has not seen yet.
func (s *supervisor) unseen(ss sessions) string {
	for i := range writers {
		n := ss.last(i)
		if n == 0 {
			continue
		}
		e := ss.at(i, n)
		if want, seen := e.published.Load(), e.seen.Load(); seen < want {
			return fmt.Sprintf("of writer %d only %d of %d were seen", i, seen, want)
		}
	}
	for _, p := range s.procs {
		if p.role.name == "writer" && !p.left.seen() {
			return fmt.Sprintf("of writer %d, which died at step %v, only %d of %d were seen",
				p.index, p.step, p.left.of.seen.Load(), p.left.want)
		}
	}
	return ""
}
