package cq_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// TestPoisonedRowIsNotAllotted: the row of a writer that was given up goes to nobody, also where
// its lane could be taken over.
func TestPoisonedRowIsNotAllotted(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 4, MaxLanes: 2})
	bad := join(t, q)
	post(t, bad, 0, 1)
	bad.StoreMeta(0, 0)
	_, err := cq.Read(q, make([]cq.Context, 1))
	wantErr(t, "read", err, cq.ErrCorrupt)
	must(t, bad.Close())
	w := join(t, q)
	if w.Lane() == bad.Lane() {
		t.Errorf("lane %d", w.Lane())
	}
	post(t, w, 5, 6)
	if got := read(t, q, 1); !slices.Equal(got, upTo(5, 6)) {
		t.Errorf("got %v", got)
	}
}

// TestFollowSolicited: the words about entries that the former reader released say nothing of those
// that it left.
func TestFollowSolicited(t *testing.T) {
	former := anonymousOthers(t, cq.Options{Size: 8})
	c, err := cq.NewChannel(nil)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	next := anonymousOthers(t, cq.Options{Size: 8})
	must(t, c.Attach(next))
	t.Cleanup(func() { must(t, c.Detach(soon(t), next)) })
	w := joinOthers(t, former)
	must(t, w.Post(&cq.Entry{Meta: cq.MetaSolicited}))
	post(t, w, 1, 4)
	_ = read(t, former, 2)
	must(t, former.Detach())
	<-w.ReaderGone()
	a, b := connect(t, unix.SOCK_STREAM)
	done := accept(soon(t), next, a)
	w, err = w.Follow(soon(t), b)
	must(t, errors.Join(err, <-done))
	defer w.Close()
	must(t, c.RequestNotify(next, cq.NotifySolicited))
	post(t, w, 4, 5)
	noEvent(t, "plain entries", c)
	must(t, w.Post(&cq.Entry{Context: 5, Meta: cq.MetaSolicited}))
	if ev := gets(t, "a solicited one", c, next); !ev.Solicited {
		t.Errorf("%+v", ev)
	}
	must(t, c.Ack(next, 1))
	if got := drain(t, next); !slices.Equal(got, upTo(2, 6)) {
		t.Errorf("got %v", got)
	}
}

// TestOthersLargeReader: a reader does not make a writer of another user map more than that allows,
// whatever the size of its lanes.
func TestOthersLargeReader(t *testing.T) {
	q := anonymousOthers(t, cq.Options{Size: 8, MaxLanes: 120})
	a, b := connect(t, unix.SOCK_STREAM)
	done := accept(soon(t), q, a)
	_, err := cq.AttachConn(soon(t), b, cq.WriterOptions{Trust: cq.CrossUser, MaxBytes: 24 << 10})
	wantErr(t, "attach", err, shm.ErrNoSpace)
	wantErr(t, "accept", <-done, shm.ErrNoSpace)
}

// TestServeSilentPeer: who connects and says nothing is let go, and so is who stops in the middle.
func TestServeSilentPeer(t *testing.T) {
	defer cq.ShortMeetings(20 * time.Millisecond)()
	ask := cq.RendezvousMessage(cq.StepAsk, 0, 0, 0, shm.UUID{})
	for name, say := range map[string][]byte{"nothing": nil, "half": ask[:40], "the first": ask} {
		t.Run(name, func(t *testing.T) {
			q := anonymous(t, cq.Options{Size: 4})
			l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix",
				Name: filepath.Join(openTempDir(t), "s")})
			must(t, err)
			refused, served := make(chan error, 1), make(chan error, 1)
			go func() { served <- q.Serve(l, func(err error) { refused <- err }) }()
			c, err := net.Dial("unix", l.Addr().String())
			must(t, err)
			defer c.Close()
			_, _ = c.Write(say) // if it is not let go before
			select {
			case err = <-refused:
				wantErr(t, "the meeting", err, context.DeadlineExceeded)
			case <-time.After(time.Minute):
				t.Error("it is waited for")
			}
			must(t, l.Close())
			<-served
		})
	}
}

// TestAttachSilentReader: a reader of another user that begins a rendezvous and does not go on is
// waited for no longer than agreed, whatever the caller's context says.
func TestAttachSilentReader(t *testing.T) {
	defer cq.ShortMeetings(20 * time.Millisecond)()
	q := anonymousOthers(t, cq.Options{Size: 4})
	fd, err := cq.ShareReader(q)
	must(t, err)
	defer shm.CloseFDs([]int{fd})
	a, b := connect(t, unix.SOCK_STREAM)
	must(t, shm.SendFDs(a, othersMessage(cq.StepOffer, cq.FDReader, 1, cq.QueueUUID(q)), fd))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = cq.AttachConn(ctx, b, cq.WriterOptions{Trust: cq.CrossUser, Allow: bothUsers()})
	wantErr(t, "attach", err, cq.ErrTimedOut)
}
