package torture

import (
	"fmt"
	"time"

	"github.com/shmring/shmring/shm/crash"
)

// stepsOf lists where the processes of a role can die.
var stepsOf = map[string][]crash.Label{
	"reader": {crash.ClaimLocked, crash.ClaimStored, crash.ClaimLeft, crash.AdoptClaimed,
		crash.AdoptStarted, crash.ParkStored, crash.ParkPaid, crash.ArmStored, crash.SleepNext,
		crash.SleepEnded, crash.TakeMarks, crash.PeekChosen, crash.PeekStored, crash.Releasing,
		crash.Released, crash.DetachSilenced},
	"writer": {crash.ClaimLocked, crash.ClaimStored, crash.ClaimLeft, crash.AttachClaimed,
		crash.AttachWritten, crash.AttachAnnounced, crash.Filled, crash.Stamped,
		crash.PublishStored, crash.RingParked, crash.RingMarked, crash.RingWoken,
		crash.PublishEnded, crash.WriterClosing, crash.WriterReleased},
	"churner": {crash.CreateAllocated, crash.CreateFilled, crash.CreateLocked, crash.CreateLinked,
		crash.ClaimLocked, crash.ClaimStored, crash.ClaimLeft, crash.AttachClaimed,
		crash.AttachWritten, crash.AttachAnnounced, crash.WriterClosing, crash.WriterReleased,
		crash.ReadCopied, crash.ReadReleased, crash.AdoptClaimed, crash.AdoptStarted,
		crash.DetachSilenced, crash.CloseCondemned, crash.CloseLanes, crash.CloseUnlinked,
		crash.CloseVacated, crash.CollectLanes, crash.CollectClaimed, crash.CollectCondemned,
		crash.CollectUnlinked, crash.MeetSending, crash.MeetSent, crash.MeetReceived},
}

// often are steps that a process passes many times a second.
var often = map[crash.Label]bool{crash.Filled: true, crash.Stamped: true,
	crash.PublishStored: true, crash.PublishEnded: true, crash.TakeMarks: true,
	crash.PeekChosen: true, crash.PeekStored: true, crash.Releasing: true, crash.Released: true}

// aim chooses the step that killed least often, counting a little how often it was aimed at: some
// steps are passed so rarely that most who were sent there die of something else.
func (s *supervisor) aim(role string) crash.Label {
	all := stepsOf[role]
	s.mu.Lock()
	defer s.mu.Unlock()
	score := func(l crash.Label) uint64 { return 8*s.report.Steps[l.String()] + s.aimed[l] }
	best, from := crash.None, s.rnd.IntN(len(all))
	for i := range all {
		l := all[(from+i)%len(all)]
		if best == crash.None || score(l) < score(best) {
			best = l
		}
	}
	s.aimed[best]++
	return best
}

// passage chooses how often a step is survived.
func (s *supervisor) passage(l crash.Label) int {
	if often[l] {
		return s.rnd.IntN(500)
	}
	return s.rnd.IntN(3)
}

// afterPublish are steps at which the tail is stored: what stands before it must be read.
var afterPublish = map[crash.Label]bool{crash.PublishStored: true, crash.RingParked: true,
	crash.RingMarked: true, crash.RingWoken: true, crash.PublishEnded: true}

// beforePublish are steps at which it is not stored yet: no more may ever be read of the session.
var beforePublish = map[crash.Label]bool{crash.Filled: true, crash.Stamped: true}

// bequeathed notes what a writer that died has left to be read. At a step it is known exactly
// whether the entries that it was posting are published.
func (s *supervisor) bequeathed(p *proc) {
	n := s.ledger.word(wordSessions + p.index).Load()
	if p.role != "writer" || n == 0 || n >= maxSessions {
		return
	}
	p.dead, p.waiting = s.ledger.session(p.index, n), time.Now()
	p.want = p.dead.published.Load()
	if p.shot {
		return
	}
	if beforePublish[p.step] {
		s.exact[sessionName(p.index, n)] = true
	} else if afterPublish[p.step] && p.want < p.dead.intent.Load() {
		p.want++ // at least
	}
}

// settled tells whether the next writer may come: the reader has seen all of its predecessor,
// though that could not ring any more. It waits for that a moment.
func (s *supervisor) settled(p *proc) bool {
	for range 10 {
		if p.dead.seen.Load() >= p.want {
			p.want = 0
			return true
		}
		time.Sleep(time.Millisecond)
	}
	if time.Since(p.waiting) < patience/2 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count("hung", 1, "hung: of writer %d, which is dead, %d of %d were seen in %v (step %v)",
		p.index, p.dead.seen.Load(), p.want, patience/2, p.step)
	p.want = 0
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
			s.mu.Lock()
			defer s.mu.Unlock()
			s.count("hung", 1, "hung: nobody posts any more, and %s in %v", missing, patience/2)
			return nil
		}
		for _, p := range s.procs { // a reader may still die at its step
			select {
			case <-p.done:
				if p.role == "reader" {
					s.watch(false)
					if err := s.revive(p); err != nil {
						return err
					}
				}
			default:
			}
		}
	}
}

// unseen says what the reader has not seen yet.
func (s *supervisor) unseen() string {
	for i := range writers {
		n := s.ledger.word(wordSessions + i).Load()
		if n == 0 || n >= maxSessions {
			continue
		}
		e := s.ledger.session(i, n)
		if want, seen := e.published.Load(), e.seen.Load(); seen < want {
			return fmt.Sprintf("of writer %d only %d of %d were seen", i, seen, want)
		}
	}
	for _, p := range s.procs {
		if seen := p.seen(); seen < p.want {
			return fmt.Sprintf("of writer %d, which died at step %v, only %d of %d were seen",
				p.index, p.step, seen, p.want)
		}
	}
	return ""
}

func (p *proc) seen() uint64 {
	if p.want == 0 {
		return 0
	}
	return p.dead.seen.Load()
}
