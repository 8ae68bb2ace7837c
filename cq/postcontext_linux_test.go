package cq_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

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

// TestWriteContextReaderKilled is about writers of events: TestReaderEnds has those of entries.
func TestWriteContextReaderKilled(t *testing.T) {
	t.Parallel()
	d, name := openDir(t), queueName(t)
	q := shmtest.Got(cq.Create(cq.Named(d, name), cq.Options{Lifetime: cq.Persistent})).Or(t)
	e, err := cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{Size: 2, Lifetime: cq.Persistent})
	must(t, errors.Join(err, q.Detach(), e.Detach()))
	c := startChild(t, "death reader", envQueue+"="+name, envKind+"=blind")
	c.Says(t, "bound")
	w := attachEvents(t, d, "events")
	n := killedWhileWaiting(t, w, c)
	e = shmtest.Have(cq.OpenEvents(cq.Named(d, "events"), cq.EventOptions{})).In(t)
	successorReads(t, w, n, func() (uint64, error) {
		var ev cq.Event
		_, err := e.Read(&ev, 0)
		return ev.Context, err
	})
	must(t, cq.Remove(cq.Named(d, name)))
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
