package place

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
)

func listenUnix(t *testing.T) (*net.UnixListener, func() *net.UnixConn) {
	t.Helper()
	at := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"}
	l := shmtest.Have(net.ListenUnix("unix", at)).In(t)
	return l, func() *net.UnixConn {
		c := shmtest.Got(net.DialUnix("unix", nil, at)).Or(t)
		return c
	}
}

// accepted is how a call of Accept ended.
func accepted(t *testing.T, what string, ended <-chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(time.Minute):
		t.Fatalf("%s: waits for ever", what)
		return nil
	}
}

// TestAcceptTogether: of those who wait at one listener some end, at the same time, and the others
// accept what comes.
func TestAcceptTogether(t *testing.T) {
	l, dial := listenUnix(t)
	why := errors.New("enough")
	for range 100 {
		over, cancel := context.WithCancelCause(t.Context())
		end, stay := make(chan error, 3), make(chan error, 2)
		wait := func(ctx context.Context, ended chan error) {
			c, err := Accept(ctx, l, never)
			if err == nil {
				err = c.Close()
			}
			ended <- err
		}
		for range cap(end) {
			// Each learns of it by itself, as two servers of one queue do.
			ctx, stop := context.WithCancelCause(context.WithoutCancel(over))
			go func() {
				<-over.Done()
				stop(context.Cause(over))
			}()
			go wait(ctx, end)
		}
		for range cap(stay) {
			go wait(t.Context(), stay)
		}
		cancel(why)
		for range cap(end) {
			if err := accepted(t, "who ends", end); err != why {
				t.Fatalf("who ends: %v", err)
			}
		}
		for range cap(stay) {
			c := dial()
			if err := accepted(t, "who stays", stay); err != nil {
				t.Fatalf("who stays: %v", err)
			}
			c.Close()
		}
	}
	if len(accepts) != 0 {
		t.Errorf("%d listeners are remembered", len(accepts))
	}
}

// TestAcceptEnds: an end that came before is one, whoever waits to be accepted; and the other ends
// are the listener's own.
func TestAcceptEnds(t *testing.T) {
	l, dial := listenUnix(t)
	c := dial()
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Accept(ctx, l, never); err != context.Canceled {
		t.Errorf("after the end: %v", err)
	}
	if got, err := Accept(t.Context(), l, never); err != nil {
		t.Errorf("who was left waiting: %v", err)
	} else {
		got.Close()
	}
	shmtest.Must(t, l.SetDeadline(time.Unix(1, 0)))
	if _, err := Accept(t.Context(), l, never); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("with a deadline of the caller's own: %v", err)
	}
	shmtest.Must(t, l.SetDeadline(time.Time{}))
	ended := make(chan error, 1)
	go func() {
		_, err := Accept(t.Context(), l, never)
		ended <- err
	}()
	l.Close()
	if err := accepted(t, "closed", ended); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// never is told of nothing.
func never(err error) { panic(err) }

// TestAcceptStarved: who has no descriptor for a connection is told so, and accepts it when there
// is one, unless the context ends before.
func TestAcceptStarved(t *testing.T) {
	l, dial := listenUnix(t)
	c := dial()
	defer c.Close()
	restore := shmtest.LimitFiles(0)
	defer restore()
	ctx, cancel := context.WithCancel(t.Context())
	var told error
	if _, err := Accept(ctx, l, func(err error) { told = err; cancel() }); err != context.Canceled {
		t.Errorf("after the end: %v", err)
	}
	if !errors.Is(told, syscall.EMFILE) {
		t.Errorf("told of %v", told)
	}
	got := shmtest.Got(Accept(t.Context(), l, func(error) { restore() })).Or(t)
	got.Close()
}

// TestPlaces: who is put out, and who is refused.
func TestPlaces(t *testing.T) {
	p := NewPlaces(4)
	var out []string
	take := func(name string, user int) (leave func(), err error) {
		c, err := p.Take(user, func(why error) {
			if !errors.Is(why, kind.ErrBusy) {
				t.Errorf("%s: %v", name, why)
			}
			out = append(out, name)
		})
		return func() { p.Leave(c) }, err
	}
	var leave []func()
	for _, tt := range []struct {
		name string
		user int
		out  string // who goes for it
		busy bool
	}{
		{"a1", 1, "", false}, {"b1", 2, "", false}, {"a2", 1, "", false}, {"a3", 1, "", false},
		{"a4", 1, "", true}, // its own user has most
		{"c1", 3, "a1", false},
		{"c2", 3, "a2", false}, // a has two, c has one
		{"a4", 1, "c1", false},
		{"d1", 4, "a3", false},
	} {
		out = nil
		l, err := take(tt.name, tt.user)
		if tt.busy {
			if !errors.Is(err, kind.ErrBusy) {
				t.Errorf("%s: %v", tt.name, err)
			}
		} else if err != nil {
			t.Error(tt.name, err)
		} else {
			leave = append(leave, l)
		}
		if len(out) > 1 || len(out) == 1 && out[0] != tt.out || len(out) == 0 && tt.out != "" {
			t.Errorf("%s put out %v, want %q", tt.name, out, tt.out)
		}
	}
	for _, l := range leave { // also of those who were put out
		l()
		l()
	}
	if n := p.free; n != 4 {
		t.Errorf("%d are free", n)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := p.Await(ctx); err != nil {
		t.Error(err)
	}
	for range 4 {
		if _, err := take("", 0); err != nil {
			t.Error(err)
		}
	}
	why := errors.New("closed")
	cancel(why)
	if err := p.Await(ctx); err != why {
		t.Errorf("await: %v", err)
	}
}
