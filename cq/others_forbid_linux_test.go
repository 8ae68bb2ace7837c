package cq_test

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestFollowForbids: a reader that cannot tell the writer so does not take a lane that comes with
// entries: the writer gives them to somebody else.
func TestFollowForbids(t *testing.T) {
	shmtest.Conforms(t)
	const size = 8
	q := anonymousOthers(t, cq.Options{Size: size, MaxLanes: 1})
	for range 3 {
		full := lane(t, q, 1, size, 0)
		poke(scribbler{full}.section(t, cq.SectLane, 1), 0, size)
		must(t, full.SealForOthers())
		reader, writer := connect(t, unix.SOCK_STREAM)
		done := accept(soon(t), q, reader)
		must(t, shm.SendFDs(writer, othersMessage(cq.StepAsk, 0, 0, shm.UUID{})))
		_, fds := receive(t, writer)
		shm.CloseFDs(fds)
		must(t, writer.CloseRead()) // it gave up
		must(t, shm.SendFDs(writer, othersMessage(cq.StepLane, cq.FDLane, 1, cq.QueueUUID(q)),
			full.FD()))
		wantErr(t, "accept", <-done, cq.ErrPeerGone)
		if _, err := sread(q, make([]cq.Context, 1), short); !errors.Is(err, cq.ErrTimedOut) {
			t.Errorf("read: %v", err)
		}
	}
	w := joinOthers(t, q)
	post(t, w, 0, 3)
	if got := drain(t, q); !slices.Equal(got, upTo(0, 3)) {
		t.Error(got)
	}
}
