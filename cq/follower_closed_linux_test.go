package cq_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
)

// place is where a follower dials: to the reader that is there, or to nobody.
type place struct {
	reader   atomic.Pointer[cq.Queue]
	dials    atomic.Int32
	accepted chan error
}

func (p *place) dial(t *testing.T) func(context.Context) (*net.UnixConn, error) {
	return func(ctx context.Context) (*net.UnixConn, error) {
		p.dials.Add(1)
		q := p.reader.Load()
		if q == nil {
			return nil, syscall.ECONNREFUSED
		}
		a, b := connect(t, unix.SOCK_STREAM)
		go func() { p.accepted <- q.Accept(ctx, a) }()
		return b, nil
	}
}

func followTo(t *testing.T, q *cq.Queue) (*place, *cq.Follower) {
	t.Helper()
	p := &place{accepted: make(chan error, 2)}
	p.reader.Store(q)
	f, err := cq.Follow(soon(t), p.dial(t), cq.WriterOptions{Trust: cq.TrustOthers})
	must(t, errors.Join(err, <-p.accepted))
	t.Cleanup(func() { must(t, f.Close()) })
	p.reader.Store(nil)
	return p, f
}

// TestRenewClosed: who follows to a reader that has closed its queue learns so, and does not wait
// for another one at a place where nobody listens, nor for the process to end.
func TestRenewClosed(t *testing.T) {
	t.Parallel()
	t.Run("before", func(t *testing.T) {
		q := anonymousOthers(t, cq.Options{Size: 8})
		_, f := followTo(t, q)
		post(t, f.Writer(), 0, 2)
		must(t, q.Close())
		wantErr(t, "renew", f.Renew(soon(t)), cq.ErrClosed)
	})
	t.Run("meanwhile", func(t *testing.T) {
		q := anonymousOthers(t, cq.Options{Size: 8})
		_, f := followTo(t, q)
		done := later(func() { must(t, q.Close()) })
		wantErr(t, "renew", f.Renew(soon(t)), cq.ErrClosed)
		done()
	})
	t.Run("own", func(t *testing.T) {
		_, f := followTo(t, anonymousOthers(t, cq.Options{Size: 8}))
		must(t, f.Close())
		wantErr(t, "renew", f.Renew(soon(t)), cq.ErrClosed)
	})
}

// TestRenewPoisoned: what a reader has given up goes to nobody, whether it lives or has left.
func TestRenewPoisoned(t *testing.T) {
	for name, leave := range map[string]func(*cq.Queue) error{
		"living": func(*cq.Queue) error { return nil }, "left": (*cq.Queue).Detach} {
		t.Run(name, func(t *testing.T) {
			q := anonymousOthers(t, cq.Options{Size: 8})
			_, f := followTo(t, q)
			f.Writer().StoreTail(100)
			f.Writer().Announce()
			_, err := cq.Read(q, make([]cq.Context, 1))
			var lane *cq.LaneError
			if !errors.As(err, &lane) {
				t.Fatalf("read: %v", err)
			}
			must(t, leave(q))
			if err := f.Renew(soon(t)); !errors.As(err, &lane) {
				t.Errorf("renew: %v", err)
			}
		})
	}
}

// TestRenewPatience: a reader that has detached is no such case: the follower tries until there is
// another one, which gets what was left.
func TestRenewPatience(t *testing.T) {
	former, next := anonymousOthers(t, cq.Options{Size: 8}), anonymousOthers(t, cq.Options{Size: 8})
	p, f := followTo(t, former)
	post(t, f.Writer(), 0, 3)
	must(t, former.Detach())
	dials := p.dials.Load()
	go func() {
		for p.dials.Load() < dials+2 && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		p.reader.Store(next)
	}()
	must(t, errors.Join(f.Renew(soon(t)), <-p.accepted))
	if got := drain(t, next); len(got) != 3 {
		t.Errorf("%v came", got)
	}
}
