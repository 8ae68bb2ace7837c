package cq_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestFollowClosedMeanwhile: somebody closes the connection while the reader's last word is under
// way. Either that one could send it, and then the entries are its own, or it could not, and then
// they are still the writer's: never both.
func TestFollowClosedMeanwhile(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	fake := anonymousOthers(t, cq.Options{Size: 8})
	done := othersMessage(cq.StepDone, 0, 1, cq.QueueUUID(fake))
	told := 0
	for i := range 40 {
		former := anonymousOthers(t, cq.Options{Size: 8})
		w := joinOthers(t, former)
		post(t, w, 0, 3)
		must(t, former.Detach())
		<-w.ReaderGone()
		reader, writer := connect(t, []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET}[i%2])
		sent := make(chan error, 1)
		go func() {
			err := breakOff(t, fake, reader, 3)
			if err == nil && i%4 < 2 {
				_ = writer.Close()
			}
			if err == nil {
				err = shm.SendFDs(reader, done)
			}
			_ = writer.Close()
			sent <- err
		}()
		next, err := w.Follow(soon(t), writer)
		if said := <-sent; (said == nil) != (err == nil) {
			t.Fatalf("round %d: the reader's last word: %v; Follow: %v", i, said, err)
		}
		if err == nil {
			told++
			must(t, next.Close())
		} else if w.Stats().Unread != 3 {
			t.Errorf("%d are left after %v", w.Stats().Unread, err)
		}
		must(t, errors.Join(w.Close(), reader.Close()))
	}
	t.Logf("%d of 40 were told", told)
}
