package collect

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestContestPatience: who attaches gives up on somebody who removes the queue when that has gone
// on for the whole time without a break, whatever it waited for before.
func TestContestPatience(t *testing.T) {
	var c Contest
	now := time.Now()
	absent := fmt.Errorf("attach: %w", fs.ErrNotExist)
	removed := &shm.Error{Err: ErrContested}
	try := func(what string, err error, after time.Duration, want bool) (pause time.Duration) {
		t.Helper()
		now = now.Add(after)
		pause, again := c.Wait(err, now)
		if again != want || again && pause <= 0 {
			t.Errorf("%s: again %v in %v, want %v", what, again, pause, want)
		}
		return pause
	}
	try("absent", absent, time.Hour, false)
	try("met after an hour", removed, time.Hour, true)
	try("nearly over", removed, ContestMost-1, true)
	try("a break", absent, 1, false)
	try("met again", removed, time.Hour, true)
	try("nearly over", removed, ContestMost-1, true)
	try("over", removed, 1, false)
	if err := c.Outcome(removed); !errors.Is(err, kind.ErrBusy) {
		t.Errorf("of a removal: %v", err)
	}
	claimed := &TakenError{fmt.Errorf("no lane: %w", kind.ErrLanes)}
	if err := c.Outcome(kind.Failed("attach", "q", claimed)); !errors.Is(err, kind.ErrLanes) ||
		errors.Is(err, kind.ErrBusy) {
		t.Errorf("of lanes that somebody keeps: %v", err)
	}
	c = Contest{}
	tries := 0
	for pause := time.Duration(0); ; tries++ {
		var again bool
		if now = now.Add(pause); tries > 1000 {
			break
		}
		if pause, again = c.Wait(claimed, now); !again {
			break
		}
	}
	if most := int(ContestMost/contestPause) + 6; tries > most {
		t.Errorf("%d looks at every lane, want at most %d", tries, most)
	}
	shmtest.Must(t, c.Outcome(nil))
}
