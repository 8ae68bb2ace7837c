package cq_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestReaderEnds: a writer learns of its reader's end, wherever that was: by posts if it closed,
// and by one event if it was killed, or by a post that waits for room. A stopped one has not ended,
// and is waited for. A successor gets all; where nobody can follow by himself, posts end. The
// reader's memory goes with it.
func TestReaderEnds(t *testing.T) {
	shmtest.Conforms(t)
	t.Run("all", func(t *testing.T) {
		for _, at := range []site{namedSite, memfdSite, othersSite} {
			t.Run(at.String()+" closed", func(t *testing.T) { t.Parallel(); readerCloses(t, at) })
			t.Run(at.String()+" killed", func(t *testing.T) { t.Parallel(); readerDies(t, at) })
		}
	})
	noMemfds(t)
	shmtest.Have(cq.NewPollSet(openDir(t), 0)).In(t) // which removes the bells of the dead
}

// readAt starts a reader, and a writer of this process that tells an event queue of it.
func readAt(t *testing.T, at site) (r *toldReader, w *cq.Writer, e *cq.EventQueue) {
	t.Helper()
	if !at.memfd {
		_, q := create(t, cq.Options{Size: 8})
		must(t, q.Detach())
	}
	r = startReader(t, at)
	w = r.attach()
	e = shmtest.Have(cq.CreateEvents(cq.Unnamed("small"), cq.EventOptions{Size: 2})).In(t)
	must(t, w.BindEvents(e))
	post(t, w, 0, 3)
	return r, w, e
}

func readerCloses(t *testing.T, at site) {
	r, w, e := readAt(t, at)
	r.expect("close", 0, "")
	wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrClosed)
	r.Kill()
	noNews(t, e)
	must(t, w.Close())
	if at.others && w.ReaderGone() == nil {
		t.Error("no channel")
	}
}

func readerDies(t *testing.T, at site) {
	r, w, e := readAt(t, at)
	r.Halt(t)
	noNews(t, e)
	select {
	case <-w.ReaderGone():
		t.Error("a stopped reader is gone")
	default:
	}
	waitsForStopped(t, w)
	posted := killedWhileWaiting(t, w, r.child)
	_, p := nextPeer(t, e)
	if p.Role != cq.PeerReader || p.PID != r.Process.Pid || p.End-p.First != posted || posted != 8 {
		t.Errorf("%+v of %d", p, posted)
	}
	noNews(t, e)
	if at.others {
		<-w.ReaderGone()
		wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrPeerGone, syscall.ECONNRESET)
		_, err := w.PostBatch(make([]cq.Entry, 2))
		wantErr(t, "batch", err, cq.ErrPeerGone)
		wantErr(t, "credit", w.Credits().Add(1), cq.ErrPeerGone)
	} else {
		wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrFull)
	}
	if !at.memfd {
		q := shmtest.Got(cq.Open(cq.Named(openDir(t), queueName(t)), cq.Options{Existing: true})).Or(t)
		successorReads(t, w, posted, roomOf(q, w).next)
		closeQueue(t, q)
	}
	must(t, w.Close())
	wantErr(t, "closed", w.BindEvents(e), cq.ErrClosed)
}

// TestOthersNotAllowed: users that are not on the list are refused by either side, before anything
// is given to them; groups count, supplementary ones too.
func TestOthersNotAllowed(t *testing.T) {
	shmtest.Conforms(t)
	q := shmtest.Have(cq.Create(cq.Unnamed("q"), cq.Options{Trust: cq.CrossUser})).In(t)
	_, conn := startOther(t, othersSite.writerRole())
	before := len(openFiles())
	wantErr(t, "accept", q.Accept(soon(t), conn), shm.ErrOwner, syscall.EPERM)
	noMoreFiles(t, before)
	for allow, want := range map[*shm.AllowList]error{nil: shm.ErrOwner, {GIDs: []int{nobody}}: nil} {
		r := startReader(t, othersSite)
		done := later(func() { r.do("accept", 0) })
		w, err := cq.Attach(soon(t), cq.Over(r.conn),
			cq.WriterOptions{Trust: cq.CrossUser, Allow: allow})
		if !errors.Is(err, want) {
			t.Errorf("attach: %v, want %v", err, want)
		}
		if err == nil {
			must(t, w.Close())
		}
		must(t, r.conn.Close())
		done()
	}
}

// TestOthersTrustFits: both sides must mean the same kind of trust.
func TestOthersTrustFits(t *testing.T) {
	for _, here := range []cq.Trust{cq.SameUser, cq.CrossUser} {
		q := anonymous(t, cq.Options{Trust: here})
		bothRefuse(t, q, cq.WriterOptions{Trust: cq.CrossUser - here}, cq.ErrInvalid)
	}
	d := openDir(t)
	_, err := cq.Create(cq.Named(d, "named"), cq.Options{Trust: cq.CrossUser})
	wantErr(t, "with a name", err, errors.ErrUnsupported)
	_, err = cq.Create(cq.Unnamed("q"), cq.Options{Trust: cq.CrossUser, MaxLanes: 127})
	wantErr(t, "lanes", err, cq.ErrInvalid)
	_, err = cq.Create(cq.Unnamed("q"), cq.Options{Trust: cq.CrossUser, Lifetime: cq.Persistent})
	wantErr(t, "lifetime", err, cq.ErrInvalid)
}

// TestOneConnection: several rendezvous follow one another on one connection of either kind, whose
// bytes nobody else takes while the earlier ones watch it.
func TestOneConnection(t *testing.T) {
	shmtest.Conforms(t)
	for _, at := range []site{memfdSite, othersSite} {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
			t.Run(fmt.Sprint(at, kind), func(t *testing.T) {
				q, back := at.create(t, cq.Options{Size: 8}), at.create(t, cq.Options{Size: 8})
				a, b := shmtest.Connected(t, kind)
				var ws []*cq.Writer
				for i := range 6 {
					from, conns := q, [2]*net.UnixConn{a, b}
					if i%3 == 2 {
						from, conns = back, [2]*net.UnixConn{b, a} // the other way round
					}
					w := shmtest.Got(meet(t, from, conns[0], conns[1])).Or(t)
					ws = append(ws, w)
				}
				must(t, errors.Join(a.Close(), b.Close()))
				for i, w := range ws {
					post(t, w, uint64(i), uint64(i)+1)
					must(t, w.Close())
				}
				got := append(drain(t, q), drain(t, back)...)
				slices.Sort(got)
				if !slices.Equal(got, upTo(0, 6)) {
					t.Error(got)
				}
			})
		}
	}
}

// forks makes a copy of this process that does nothing, and says which it is.
func forks() string { return fmt.Sprint("child ", shmtest.Needs(shmtest.Fork())) }

// splits has the child make one of its own that has all descriptors, which end ends.
func (c *child) splits(t *testing.T) (end func()) {
	t.Helper()
	shmtest.Got(fmt.Fprintln(c.In, "fork", 0)).Or(t)
	return c.heir(t)
}

// heir is the child of a child that has made one.
func (c *child) heir(t *testing.T) (end func()) {
	t.Helper()
	var pid int
	if _, err := fmt.Sscanf(c.Line(t), "child %d", &pid); err != nil {
		t.Fatal(err)
	}
	p := shmtest.Got(os.FindProcess(pid)).Or(t)
	// Once, since the number may be another one's afterwards.
	end = sync.OnceFunc(func() { _, _ = p.Kill(), p.Release() })
	t.Cleanup(end)
	return end
}

// patient is a writer of either kind, as far as waiting for room goes.
type patient interface {
	Stats() cq.WriterStats
	LookEvery(time.Duration)
	Close() error
}

// postWaiting posts one entry or event, and waits for room.
func postWaiting(ctx context.Context, w patient, context uint64) error {
	switch w := w.(type) {
	case *cq.Writer:
		return w.PostContext(ctx, &cq.Entry{Context: context})
	case *cq.EventWriter:
		_, err := w.WriteContext(ctx, &cq.Event{Context: context})
		return err
	}
	panic("no writer")
}

// fillLane posts until there is no room, and returns how many were posted.
func fillLane(t *testing.T, w patient) uint64 {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for n := w.Stats().Posted; ; n++ {
		if err := postWaiting(ctx, w, n); err != nil {
			wantErr(t, "post to a full lane", err, context.Canceled)
			return n
		}
	}
}

// postLater waits for room in another goroutine; it returns when that has found none.
func postLater(t *testing.T, ctx context.Context, w patient, context uint64) <-chan error {
	t.Helper()
	before := w.Stats().Refused
	done := make(chan error, 1)
	go func() { done <- postWaiting(ctx, w, context) }()
	eventually(t, "it waits for room", func() bool { return w.Stats().Refused > before })
	return done
}

// roomSide is a queue of this process with a writer of some kind.
type roomSide struct {
	w         patient
	next      func() (uint64, error) // takes one
	closeRead func() error
}

var roomSides = map[string]func(t *testing.T) *roomSide{
	"named": func(t *testing.T) *roomSide {
		d, q := create(t, cq.Options{Size: 2})
		return roomOf(q, attach(t, d, q.Name()))
	},
	"unnamed": func(t *testing.T) *roomSide {
		q := anonymous(t, cq.Options{Size: 2})
		return roomOf(q, join(t, q))
	},
	"others": func(t *testing.T) *roomSide {
		q := anonymousOthers(t, cq.Options{Size: 2})
		return roomOf(q, join(t, q))
	},
	"own lane": func(t *testing.T) *roomSide {
		_, q := create(t, cq.Options{Size: 2})
		w := shmtest.Have(q.Writer()).In(t)
		return roomOf(q, w)
	},
	"events": func(t *testing.T) *roomSide {
		d, e := createEvents(t, cq.EventOptions{Size: 2})
		return &roomSide{w: attachEvents(t, d, e.Name()), closeRead: e.Close,
			next: func() (uint64, error) {
				var ev cq.Event
				_, err := e.Read(&ev, 0)
				return ev.Context, err
			}}
	},
}

func roomOf(q *cq.Queue, w *cq.Writer) *roomSide {
	return &roomSide{w: w, closeRead: q.Close, next: func() (uint64, error) {
		dst := make([]cq.Context, 1)
		_, err := cq.Read(q, dst)
		return dst[0].Context, err
	}}
}

// TestPostContext: a post that waits for room ends when there is room, and with whatever else ends
// it.
func TestPostContext(t *testing.T) {
	t.Parallel()
	cases := map[string]func(t *testing.T, s *roomSide){
		"room": func(t *testing.T, s *roomSide) {
			n := fillLane(t, s.w)
			done := postLater(t, soon(t), s.w, n)
			for i := range n {
				if got, err := s.next(); got != i || err != nil {
					t.Errorf("%d, %v, want %d", got, err, i)
				}
			}
			must(t, <-done)
			if got, err := s.next(); got != n || err != nil {
				t.Errorf("%d, %v, want what waited, %d", got, err, n)
			}
		},
		"context": func(t *testing.T, s *roomSide) {
			n := fillLane(t, s.w)
			ctx, cancel := context.WithCancelCause(t.Context())
			done := postLater(t, ctx, s.w, n)
			why := errors.New("enough")
			cancel(why)
			wantErr(t, "post", <-done, context.Canceled, why)
			for range n {
				shmtest.Got(s.next()).Or(t)
			}
			_, err := s.next()
			wantErr(t, "what was not posted", err, cq.ErrWouldBlock)
			must(t, postWaiting(ctx, s.w, 9)) // there is room
		},
		"writer closed": func(t *testing.T, s *roomSide) {
			done := postLater(t, t.Context(), s.w, fillLane(t, s.w))
			must(t, s.w.Close())
			wantErr(t, "post", <-done, cq.ErrClosed)
		},
		"queue closed": func(t *testing.T, s *roomSide) {
			done := postLater(t, t.Context(), s.w, fillLane(t, s.w))
			if err := s.closeRead(); errors.Is(err, cq.ErrBusy) {
				must(t, s.w.Close()) // its own writer keeps it open
			} else {
				must(t, err)
			}
			wantErr(t, "post", <-done, cq.ErrClosed)
		},
	}
	for name, side := range roomSides {
		for what, f := range cases {
			t.Run(name+", "+what, func(t *testing.T) { f(t, side(t)) })
		}
	}
}

// killedWhileWaiting kills the reader of a lane that is full, of which it returns what is in it.
func killedWhileWaiting(t *testing.T, w patient, reader *child) uint64 {
	t.Helper()
	posted := fillLane(t, w)
	done := postLater(t, soon(t), w, posted)
	reader.Kill()
	wantErr(t, "post without a reader", <-done, cq.ErrPeerGone, syscall.ECONNRESET)
	return posted
}

// successorReads: a reader that lives is waited for, whoever was there before, and gets all.
func successorReads(t *testing.T, w patient, n uint64, next func() (uint64, error)) {
	t.Helper()
	w.LookEvery(time.Millisecond)
	done := postLater(t, soon(t), w, n)
	looks := w.Stats().Refused + 5 // each look at the reader ends in a post
	eventually(t, "it looks for its reader", func() bool { return w.Stats().Refused > looks })
	select {
	case err := <-done:
		t.Fatalf("a successor has the queue: %v", err)
	default:
	}
	for i := uint64(0); i <= n; {
		got, err := next()
		if err == cq.ErrWouldBlock && i == n {
			must(t, <-done)
			done = nil
			continue
		}
		if must(t, err); got != i {
			t.Errorf("%d, want %d", got, i)
		}
		i++
	}
	if done != nil {
		must(t, <-done)
	}
}

// waitsForStopped: a reader that is stopped is waited for.
func waitsForStopped(t *testing.T, w *cq.Writer) {
	t.Helper()
	w.LookEvery(time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	done := postLater(t, ctx, w, fillLane(t, w))
	looks := w.Stats().Refused + 5
	eventually(t, "it looks for its reader", func() bool { return w.Stats().Refused > looks })
	cancel()
	wantErr(t, "post", <-done, context.Canceled)
}
