package cq_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["silent user"] = childSilentUser }

// childSilentUser holds connections in which it says nothing, or asks for a lane and brings none.
// For each that is closed it makes another one.
func childSilentUser() {
	ask := othersMessage(cq.StepAsk, 0, 0, shm.UUID{})
	count := number(envCount, 1)
	var ready sync.WaitGroup
	ready.Add(count)
	for i := range count {
		go func() {
			for first := true; ; first = false {
				c := dialParent()
				if i%2 == 0 {
					_ = shm.SendFDs(c, ask)
				}
				if first {
					ready.Done()
				}
				for err := error(nil); err == nil; {
					_, err = c.Read(make([]byte, 64))
				}
				c.Close()
			}
		}()
	}
	ready.Wait()
	say("ready")
	toldToStop()
	select {}
}

// serveOthers serves a queue at a socket that every user may connect to.
func serveOthers(t *testing.T, q *cq.Queue, report func(error)) *net.UnixListener {
	t.Helper()
	l := listen(t)
	served := make(chan error)
	go func() { served <- q.Serve(l, report) }()
	t.Cleanup(func() {
		must(t, l.Close())
		wantErr(t, "serve", <-served, net.ErrClosed)
	})
	return l
}

// TestServeSilentUser: a user who holds more connections than are served, silent or half way, and
// comes again with each that is closed, keeps neither the places nor the rows from others.
func TestServeSilentUser(t *testing.T) {
	shmtest.Conforms(t)
	const lanes, kept = 8, 2 // which one user may keep from others
	q := anonymousOthers(t, cq.Options{Size: 8, MaxLanes: lanes})
	connections := cq.Serving(q)
	var mu sync.Mutex
	reports := map[string]int{}
	l := serveOthers(t, q, func(err error) {
		mu.Lock()
		defer mu.Unlock()
		reports[reason(err)]++
	})
	cmd := shmtest.Child(t, "silent user", "SOCKET="+l.Addr().String(), envCount+"=60")
	shmtest.AsOther(t, cmd)
	c := start(t, cmd)
	c.Says(t, "ready")
	if connections >= 60 {
		t.Fatalf("%d connections are served", connections)
	}
	eventually(t, "half meetings", func() bool { return cq.RowsOffered(q) >= kept })
	var ws []*cq.Writer
	for range lanes - kept {
		conn := dial(t, l)
		w, err := cq.Attach(soon(t), cq.Over(conn), cq.WriterOptions{Trust: cq.CrossUser})
		must(t, errors.Join(err, conn.Close()))
		ws = append(ws, w)
	}
	for i, w := range ws {
		post(t, w, uint64(i), uint64(i)+1)
	}
	got := 0
	eventually(t, "all are read", func() bool { // the reader knows a lane after its writer does
		got += len(drain(t, q))
		return got == len(ws)
	})
	c.Kill()
	for _, w := range ws {
		must(t, w.Close())
	}
	mu.Lock()
	defer mu.Unlock()
	if reports["busy"] == 0 {
		t.Errorf("nobody was refused or put out: %v", reports)
	}
}

// reason sorts what Serve reports.
func reason(err error) string {
	switch {
	case errors.Is(err, cq.ErrBusy) && errors.Is(err, syscall.EBUSY):
		return "busy"
	case errors.Is(err, cq.ErrPeerGone):
		return "gone"
	}
	return err.Error()
}

// TestUserLanes: one user does not get all lanes, however it tries, and gets its own again.
func TestUserLanes(t *testing.T) {
	shmtest.Conforms(t)
	if _, err := cq.Create(cq.Unnamed("x"), cq.Options{UserLanes: -1}); !errors.Is(err,
		cq.ErrInvalid) {
		t.Error(err)
	}
	q := anonymousOthers(t, cq.Options{Size: 8, Spin: -1, MaxLanes: 3, UserLanes: 2})
	attach := func() (*cq.Writer, error) {
		a, b := connect(t, unix.SOCK_STREAM)
		defer a.Close()
		defer b.Close()
		done := accept(soon(t), q, a)
		w, err := cq.Attach(soon(t), cq.Over(b), cq.WriterOptions{Trust: cq.CrossUser})
		if e := <-done; (e == nil) != (err == nil) || e != nil && !errors.Is(e, cq.ErrLanes) {
			t.Error(e)
		}
		if err == nil { // also where the rest is skipped
			t.Cleanup(func() { must(t, w.Close()) })
		}
		return w, err
	}
	first, err := attach()
	must(t, err)
	second, err := attach()
	must(t, err)
	_, err = attach()
	wantErr(t, "third", err, cq.ErrLanes, syscall.ECONNREFUSED)
	nobodys := startWriter(t, othersSite, q, nil)
	post(t, first, 0, 1)
	nobodys.post(t, 1, 2)
	if got := drain(t, q); len(got) != 2 {
		t.Error(got)
	}
	must(t, first.Close())
	eventually(t, "the lane is retired", func() bool {
		_ = drain(t, q)
		return q.Stats().Retired == 1
	})
	first, err = attach()
	must(t, err)
	must(t, errors.Join(first.Close(), second.Close()))
}

// TestUserLanesOfOne: among writers of one's own user there is no such bound.
func TestUserLanesOfOne(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 8, MaxLanes: 2, UserLanes: 1})
	for range 3 {
		w, err := tryJoin(t, q)
		must(t, err)
		must(t, w.Close())
	}
	join(t, q)
	join(t, q)
}

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
	wantContexts(t, "got", read(t, q, 1), upTo(5, 6)...)
}

// TestFollowSolicited: the words about entries that the former reader released say nothing of those
// that it left.
func TestFollowSolicited(t *testing.T) {
	former := anonymousOthers(t, cq.Options{Size: 8})
	c := shmtest.Have(cq.NewChannel(nil)).In(t)
	next := anonymousOthers(t, cq.Options{Size: 8})
	must(t, c.Attach(next))
	t.Cleanup(func() { must(t, c.Detach(soon(t), next)) })
	w := join(t, former)
	must(t, w.Post(&cq.Entry{Meta: cq.MetaSolicited}))
	post(t, w, 1, 4)
	_ = read(t, former, 2)
	must(t, former.Detach())
	<-w.ReaderGone()
	w = followTo(t, w, next)
	must(t, c.RequestNotify(next, cq.NotifySolicited))
	post(t, w, 4, 5)
	noEvent(t, "plain entries", c)
	must(t, w.Post(&cq.Entry{Context: 5, Meta: cq.MetaSolicited}))
	if ev := gets(t, "a solicited one", c, next); !ev.Solicited {
		t.Errorf("%+v", ev)
	}
	must(t, c.Ack(next, 1))
	wantContexts(t, "got", drain(t, next), upTo(2, 6)...)
}

// TestServeSilentPeer: who connects and says nothing is let go, and so is who stops in the middle.
func TestServeSilentPeer(t *testing.T) {
	defer cq.ShortMeetings(20 * time.Millisecond)()
	ask := cq.RendezvousMessage(cq.StepAsk, 0, 0, 0, shm.UUID{})
	for name, say := range map[string][]byte{"nothing": nil, "half": ask[:40], "the first": ask} {
		t.Run(name, func(t *testing.T) {
			q := anonymous(t, cq.Options{Size: 4})
			l := listen(t)
			refused, served := make(chan error, 1), make(chan error, 1)
			go func() { served <- q.Serve(l, func(err error) { refused <- err }) }()
			c := dial(t, l)
			_, _ = c.Write(say) // if it is not let go before
			select {
			case err := <-refused:
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
	_, err = cq.Attach(ctx, cq.Over(b), cq.WriterOptions{Trust: cq.CrossUser, Allow: bothUsers()})
	wantErr(t, "attach", err, cq.ErrTimedOut)
}
