package torture

import "github.com/shmring/shmring/shm/crash"

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
