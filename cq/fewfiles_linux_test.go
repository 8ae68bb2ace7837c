package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() {
	roles["poor"], roles["poor former"], roles["poor reader"] = childPoor, childPoorFormer,
		childPoorReader
}

// TestFewDescriptors lets each call fail at each place where it wants a descriptor: it says so,
// leaves nothing behind, in the process and on disk, and works when there is one.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	poorChild(t, "poor former", "poor")
}

func childPoor() {
	d := shmtest.Needs(shm.OpenDir(""))
	time.Sleep(time.Millisecond) // the runtime gets the descriptors that it cannot do without
	shm.Self()                   // as in a process that has had descriptors
	s := &scarce{d: d, root: d.Path(), begin: fillGaps, exact: true, want: []error{syscall.EMFILE}}
	s.limit = func(free int) {
		if free < 0 {
			limit(4096)
			return
		}
		limit(uint64(slices.Max(openFiles()) + 1 + free))
	}
	s.left = func() string { return fmt.Sprint(openFiles(), " ", objects(s.root)) }
	poorFormers(s)
	s.use()
	empty := objects(s.root)
	for _, f := range []func(*scarce){poorChannelWaits, poorRings, poorSignal, poorPurge,
		poorMeeting, poorOffer} {
		f(s)
		if left := objects(s.root); left != empty {
			say("at the end there is %s", left)
		}
	}
	if s.most < 5 { // an object takes one for its directory and two for itself
		say("nothing needed more than %d descriptors", s.most)
	}
	time.Sleep(200 * time.Millisecond) // a queue that could not be made leaves nobody who comes now
	need(d.Close())
	need(os.RemoveAll(s.root))
	say("done")
}

// childPoorFormer leaves a queue and a counter whose owner is dead.
func childPoorFormer() {
	d := shmtest.Needs(shm.OpenDir(""))
	shmtest.Needs(cq.Create(cq.Named(d, "former"), cq.Options{}))
	shmtest.Needs(cq.CreateCounter(cq.Named(d, "former counter"), cq.CounterOptions{}))
	say("done")
}

// poorFormers creates in the place of what is dead. That it cannot be removed just then does not
// mean that the name is taken.
func poorFormers(s *scarce) {
	var c io.Closer
	begun := *s
	begun.left = func() string { return fmt.Sprint(openFiles()) } // what is dead may go in steps
	for what, create := range map[string]func() (io.Closer, error){
		"queue": func() (io.Closer, error) {
			return cq.Create(cq.Named(s.d, "former"), cq.Options{})
		},
		"counter": func() (io.Closer, error) {
			return cq.CreateCounter(cq.Named(s.d, "former counter"), cq.CounterOptions{})
		},
	} {
		begun.works("create in the place of a dead "+what, func() (err error) {
			c, err = create()
			return err
		})
		need(c.Close())
	}
	if left := objects(s.root); left != s.root {
		say("in the place of what is dead there is %s", left)
	}
}

// poorChannelWaits: who waits for an event of a lane that it cannot open gets it when it can,
// though nobody rings any more.
func poorChannelWaits(s *scarce) {
	ch := shmtest.Needs(cq.NewChannel(s.d))
	q, _, post, end := members(s)
	need(errors.Join(ch.Attach(q), ch.RequestNotify(q, cq.NotifyAny), post()))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	get := func() error {
		ev, err := ch.GetEvent(ctx, cq.WaitOptions{})
		return errors.Join(err, ch.Ack(ev.Queue, 1))
	}
	need(get())
	dst := make([]cq.Context, 2)
	shmtest.Needs(cq.Read(q, dst))
	w, err := cq.Attach(ctx, cq.Named(s.d, "q"), cq.WriterOptions{}) // its reader does not look now
	need(err)
	fillGaps()
	limit(0)
	need(ch.RequestNotify(q, cq.NotifyAny))
	if _, err := cq.Read(q, dst); !errors.Is(err, syscall.EMFILE) {
		say("a lane without a descriptor: %v", err)
	}
	need(w.Post(&cq.Entry{Context: 6}))
	got := make(chan error, 1)
	go func() { got <- get() }()
	time.Sleep(100 * time.Millisecond) // it has looked in vain
	limit(4096)
	need(<-got)
	if n, err := cq.Read(q, dst); n != 1 || dst[0].Context != 6 {
		say("after the event it reads %d, %v", n, err)
	}
	need(errors.Join(ch.Detach(ctx, q), ch.Close(), w.Close()))
	end()
}

// poorRings: who sleeps elsewhere than on the queue is woken at once by the queue's own writer, and
// by another one as soon as that can have a descriptor, though there is no other post, or when that
// is closed.
func poorRings(s *scarce) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	q := shmtest.Needs(cq.Create(cq.Named(s.d, "q"), cq.Options{Size: 8, Wait: cq.WaitFD}))
	w := shmtest.Needs(cq.Attach(ctx, cq.Named(s.d, "q"), cq.WriterOptions{}))
	own := shmtest.Needs(q.Writer())
	set := shmtest.Needs(cq.NewWaitSet(s.d, cq.WaitSetOptions{}))
	object, err := q.GetWait()
	need(errors.Join(err, passes(q, w)))
	dst := make([]cq.Context, 2)
	arm := func() {
		for q.TryWait() != nil {
			_, _ = cq.Read(q, dst)
		}
	}
	readable := func() error {
		fds := []unix.PollFd{{Fd: int32(object.FD), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 20e3)
		for err == unix.EINTR {
			n, err = unix.Poll(fds, 20e3)
		}
		if err == nil && n == 0 {
			err = cq.ErrTimedOut
		}
		return err
	}
	for _, by := range []struct {
		what string
		arm  func()
		wait func() error
	}{
		{"its descriptor", arm, readable},
		{"a set", func() {
			if err := set.Add(q); err != nil && !errors.Is(err, fs.ErrExist) {
				need(err)
			}
		}, func() error {
			_, err := set.Wait(ctx, nil, cq.WaitOptions{})
			return err
		}},
	} {
		brief := shmtest.Needs(cq.Attach(ctx, cq.Named(s.d, "q"), cq.WriterOptions{}))
		need(passes(q, brief))
		for _, p := range []*cq.Writer{own, w, brief} {
			by.arm()
			woken := make(chan error, 1)
			go func() { woken <- by.wait() }()
			time.Sleep(20 * time.Millisecond) // it sleeps
			fillGaps()
			limit(0)
			need(p.Post(&cq.Entry{Context: 5}))
			if p != own {
				limit(4096)
			}
			if p == brief {
				need(p.Close())
			}
			if err := <-woken; err != nil {
				say("lane %d wakes nobody who sleeps on %s: %v", p.Lane(), by.what, err)
			}
			limit(4096)
			wantRead(q, 5)
		}
	}
	need(errors.Join(set.Remove(q), set.Close(), own.Close(), w.Close(), q.Close()))
}

// poorSignal: who signals a queue of another process hears of it if nobody was woken by that.
func poorSignal(s *scarce) {
	q := shmtest.Needs(cq.Create(cq.Named(s.d, "q"), cq.Options{Size: 8, Wait: cq.WaitFD}))
	set := shmtest.Needs(cq.NewWaitSet(s.d, cq.WaitSetOptions{Wait: cq.WaitFD}))
	need(set.Add(q))
	for what, on := range map[string]interface {
		GetWait() (cq.Native, error)
		TryWait() error
	}{"a queue": q, "a set": set} {
		object := shmtest.Needs(on.GetWait())
		s.makes("signal who sleeps on the descriptor of "+what, func() error {
			for on.TryWait() != nil {
			}
			if err := cq.SignalQueue(cq.Named(s.d, "q")); err != nil {
				return err
			}
			fds := []unix.PollFd{{Fd: int32(object.FD), Events: unix.POLLIN}}
			if n, err := unix.Poll(fds, 1e3); n == 0 {
				say("a signal wakes nobody who sleeps on the descriptor of %s: %v", what, err)
			}
			return nil
		})
	}
	need(errors.Join(set.Remove(q), set.Close(), q.Close()))
}

// poorPurge: what a writer said of an object that is closed is gone also if its lane could not be
// opened just then.
func poorPurge(s *scarce) {
	e := shmtest.Needs(cq.CreateEvents(cq.Named(s.d, "e"), cq.EventOptions{Size: 8}))
	w := shmtest.Needs(cq.AttachEvents(context.Background(), cq.Named(s.d, "e"), cq.WriterOptions{}))
	for i := range uint64(2) {
		shmtest.Needs(w.Write(&cq.Event{FID: fabric(i), Context: i}))
	}
	fillGaps()
	limit(0)
	need(e.Purge(fabric(0)))
	if _, err := e.Read(&cq.Event{}, 0); !errors.Is(err, syscall.EMFILE) {
		say("a lane without a descriptor: %v", err)
	}
	limit(4096)
	var ev cq.Event
	if _, err := eqSread(e, &ev, time.Minute); err != nil || ev.Context != 1 {
		say("after a purge there is %+v, %v", ev, err)
	}
	need(errors.Join(w.Close(), e.Close()))
}

// poorMeeting: a writer and its reader meet when both have the descriptors, and so it does with the
// next reader; until then it keeps what the former one left.
func poorMeeting(s *scarce) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var set *cq.WaitSet // whose bell stays as long as that
	s.makes("create a wait set without a name", func() (err error) {
		set, err = cq.NewWaitSet(nil, cq.WaitSetOptions{})
		return err
	})
	for _, trust := range []cq.Trust{cq.SameUser, cq.CrossUser} {
		o := cq.Options{Size: 4, Trust: trust, Wait: cq.WaitFD}
		if trust == cq.CrossUser {
			o.Allow = bothUsers()
		}
		readers := [2]*cq.Queue{}
		for i := range readers {
			s.makes("create without a name", func() (err error) {
				readers[i], err = cq.Create(cq.Unnamed("reader"), o)
				return err
			})
			need(errors.Join(set.Add(readers[i]), set.Remove(readers[i])))
			_ = cq.ReaderFD(readers[i]) // it stays from the first meeting on
		}
		var w *cq.Writer
		s.makes("attach over a socket", func() error {
			return poorlyMet(readers[0], func(conn *net.UnixConn) (err error) {
				next, err := cq.Attach(ctx, cq.Over(conn), cq.WriterOptions{Trust: trust, Allow: o.Allow})
				if err == nil {
					w = next
				}
				return err
			})
		})
		need(w.Post(&cq.Entry{Context: 8}))
		if trust == cq.SameUser {
			wantRead(readers[0], 8)
			need(errors.Join(w.Close(), readers[0].Close(), readers[1].Close()))
			continue
		}
		need(readers[0].Detach())
		s.makes("follow", func() error {
			return poorlyMet(readers[1], func(conn *net.UnixConn) (err error) {
				next, err := w.Follow(ctx, conn)
				if err == nil {
					w = next
				}
				return err
			})
		})
		need(w.Post(&cq.Entry{Context: 9}))
		wantRead(readers[1], 8, 9)
		need(errors.Join(w.Close(), readers[1].Close()))
	}
	need(set.Close())
}

// poorOffer: a reader offers all that a writer needs, or says that it has no descriptor for it.
func poorOffer(s *scarce) {
	set, err := cq.NewWaitSet(s.d, cq.WaitSetOptions{}) // the process has a bell
	need(err)
	for _, former := range []bool{false, true} {
		for more := 0; !poorlyOffers(former, more) && more < 9; more++ {
		}
	}
	need(set.Close())
}

// poorlyOffers reports whether a reader that can have so many more descriptors offers a lane.
func poorlyOffers(former bool, more int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	q := shmtest.Needs(cq.Create(cq.Unnamed("reader"), cq.Options{Size: 4, MaxLanes: 1}))
	want := uint32(1<<place.FDReader | 1<<place.FDBell)
	if former {
		need(selfMeet(q.Accept, func(conn *net.UnixConn) error {
			w, err := cq.Attach(ctx, cq.Over(conn), cq.WriterOptions{})
			return errors.Join(err, w.Close())
		}))
		want |= 1 << place.FDLane
	}
	a, b, err := shmtest.Sockets(unix.SOCK_SEQPACKET)
	need(err)
	done := make(chan error, 1)
	ask := place.Message{Step: place.StepAsk}
	need(shm.SendFDs(b, ask.Encode()))
	fillGaps()
	limit(uint64(slices.Max(openFiles()) + 1 + more))
	go func() { done <- q.Accept(ctx, a) }()
	raw := shmtest.Needs(b.SyscallConn())
	need(raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return n > 0 && err == nil
	}))
	limit(4096)
	buf := make([]byte, place.MessageBytes)
	_, got, err := shm.RecvFDs(b, buf, 4)
	need(err)
	shm.CloseFDs(got)
	said, err := place.DecodeMessage(buf)
	need(errors.Join(err, b.Close()))
	if err := <-done; said.Status == 0 && said.FDs != want || said.Status != 0 &&
		!(errors.Is(err, syscall.EMFILE) && said.Status == place.StatusOf(cq.ErrNoFiles)) {
		say("with %d descriptors a reader offers %#b, not %#b, says %v, and ends with %v", more,
			said.FDs, want, place.StatusError(said.Status), err)
	}
	need(errors.Join(a.Close(), q.Close()))
	return said.Status == 0
}

// poorlyMet is selfMeet whose sides agree on how it ends.
func poorlyMet(q *cq.Queue, attach func(*net.UnixConn) error) error {
	var accepted, attached error
	err := selfMeet(func(ctx context.Context, c *net.UnixConn) error {
		accepted = q.Accept(ctx, c)
		return accepted
	}, func(c *net.UnixConn) error {
		attached = attach(c)
		return attached
	})
	if (accepted == nil) != (attached == nil) {
		say("the reader says %v, the writer %v", accepted, attached)
	}
	if errors.Is(err, shm.ErrTruncated) { // so the kernel says that no descriptor was free
		err = syscall.EMFILE
	}
	return err
}

// wantRead says what is wrong with what a queue has.
func wantRead(q *cq.Queue, want ...uint64) {
	dst := make([]cq.Context, 3)
	if n, err := cq.Read(q, dst); !slices.Equal(contexts(dst[:n]), want) {
		say("the reader reads %v, %v, want %v", contexts(dst[:n]), err, want)
	}
}

func limit(n uint64) {
	need(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: 4096}))
}

// TestLaneWithoutDescriptors: a reader that can open no file for the lane of a writer says so, and
// gets what is in it when it can, though nobody rings any more.
func TestLaneWithoutDescriptors(t *testing.T) {
	t.Parallel()
	shmtest.Long(t)
	poorChild(t, "poor reader")
}

// poorChild reports what children complain of, one after the other, the last of which lacks
// descriptors. They have a directory of their own.
func poorChild(t *testing.T, roles ...string) {
	t.Helper()
	dir := "SHMRING_DIR=" + openDir(t).Path() + "/poor"
	for _, role := range roles {
		c := startChild(t, role, dir)
		complaints(t, c)
		_ = c.Stop(t)
	}
}

func childPoorReader() {
	d := shmtest.Needs(shm.OpenDir(""))
	set := shmtest.Needs(cq.NewWaitSet(d, cq.WaitSetOptions{}))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for i, read := range []func(q *cq.Queue, dst []cq.Context) (int, error){
		func(q *cq.Queue, dst []cq.Context) (int, error) {
			return cq.ReadContext(ctx, q, dst,
				cq.ReadOptions{})
		},
		func(q *cq.Queue, dst []cq.Context) (int, error) {
			shmtest.Needs(set.Wait(ctx, make([]cq.Waitable, 1), cq.WaitOptions{}))
			return cq.Read(q, dst)
		},
		func(q *cq.Queue, dst []cq.Context) (n int, err error) {
			for {
				n, err = cq.Read(q, dst)
				if !errors.Is(err, cq.ErrWouldBlock) || ctx.Err() != nil {
					return n, err
				}
				time.Sleep(time.Millisecond)
			}
		},
	} {
		q := shmtest.Needs(cq.Create(cq.Named(d, "q"), cq.Options{Size: 8}))
		w := shmtest.Needs(cq.Attach(ctx, cq.Named(d, "q"), cq.WriterOptions{}))
		need(set.Add(q))
		need(w.Post(&cq.Entry{Context: 7}))
		dst := make([]cq.Context, 2)
		for range 3 { // it says so again and again
			fillGaps()
			limit(0)
			n, err := read(q, dst)
			limit(4096)
			if n != 0 || !errors.Is(err, syscall.EMFILE) || errors.Is(err, cq.ErrCorrupt) ||
				!errors.As(err, new(*cq.LaneError)) {
				say("way %d: without descriptors it read %d, %v", i, n, err)
			}
		}
		if n, err := read(q, dst); n != 1 || err != nil || dst[0].Context != 7 {
			say("way %d: with descriptors it read %d, %v", i, n, err)
		}
		if st := q.Stats(); st.GivenUp != 0 {
			say("way %d: %d lanes are given up", i, st.GivenUp)
		}
		need(errors.Join(set.Remove(q), w.Close(), q.Close()))
	}
	need(errors.Join(set.Close(), d.Close()))
	need(os.RemoveAll(d.Path()))
	say("done")
}
