package cq_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
)

// events makes an event queue beside whatever else the test has.
func events(t testing.TB, o cq.EventOptions) *cq.EventQueue {
	t.Helper()
	eq, err := cq.CreateEvents(openDir(t), "eq."+queueName(t), o)
	must(t, err)
	t.Cleanup(func() { must(t, eq.Close()) })
	return eq
}

// nextEvent waits for an event and writes it down: kind, context, data; an error event as its
// number, context, data.
func nextEvent(t testing.TB, eq *cq.EventQueue, about cq.FID) string {
	t.Helper()
	var ev cq.Event
	_, err := eq.ReadContext(t.Context(), &ev, cq.ReadOptions{})
	if errors.Is(err, cq.ErrAvail) {
		var e cq.EventError
		_, err = eq.ReadErr(&e, 0)
		must(t, err)
		if e.FID != about {
			t.Errorf("an error of %v, want %v", e.FID, about)
		}
		return fmt.Sprintf("%v %d %d", e.Err, e.Context, e.Data)
	}
	must(t, err)
	if ev.FID != about {
		t.Errorf("an event of %v, want %v", ev.FID, about)
	}
	return fmt.Sprintf("%v %d %d", ev.Event, ev.Context, ev.Data)
}

func wantEvents(t testing.TB, eq *cq.EventQueue, about cq.FID, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := nextEvent(t, eq, about); got != w {
			t.Errorf("event %q, want %q", got, w)
		}
	}
	if _, err := eq.Read(&cq.Event{}, 0); !errors.Is(err, cq.ErrWouldBlock) {
		t.Errorf("another event: %v", err)
	}
}

// TestInsertAsync: an error event an address that fails, then exactly one that counts the rest.
func TestInsertAsync(t *testing.T) {
	vectors(t, cq.AddressOptions{Count: 4}, func(t *testing.T, v *cq.AddressVector) {
		wantErr(t, "without a queue", v.InsertAsync(sockaddrs(0, 1), 1), cq.ErrNoEQ, cq.ENoEQ)
		eq := events(t, cq.EventOptions{Size: 8})
		wantErr(t, "none", v.BindEvents(nil), cq.ErrInvalid)
		must(t, v.BindEvents(eq))
		wantErr(t, "two", v.BindEvents(eq), cq.ErrBusy, syscall.EBUSY)
		wantErr(t, "close of the queue", eq.Close(), cq.ErrBusy, syscall.EBUSY)
		must(t, v.InsertAsync(sockaddrs(0, 2), 7))
		wantEvents(t, eq, v.FID(), "addresses inserted 7 2")
		must(t, v.InsertAsync([][]byte{nil, sockaddr(2), sockaddr(0), sockaddr(3), sockaddr(4)}, 8))
		must(t, v.InsertAsync(nil, 9))
		wantEvents(t, eq, v.FID(), "invalid argument 8 0", "cannot allocate memory 8 4",
			"addresses inserted 8 3", "addresses inserted 9 0")
		for i := range 4 {
			wantLookup(t, v, cq.Addr(i), sockaddr(i))
		}
		err := v.InsertAsync(sockaddrs(0, 8), 1)
		wantErr(t, "more than the queue can report", err, cq.ErrInvalid)
		must(t, v.InsertAsync(sockaddrs(0, 7), 1))
		wantErr(t, "no room for two", v.InsertAsync(sockaddrs(0, 7), 2), cq.ErrFull)
		wantEvents(t, eq, v.FID(), "cannot allocate memory 1 4", "cannot allocate memory 1 5",
			"cannot allocate memory 1 6", "addresses inserted 1 4")
		must(t, v.Close())
	})
}

// TestInsertAsyncRefused: whatever Check says becomes a number.
func TestInsertAsyncRefused(t *testing.T) {
	for err, want := range map[error]string{
		errors.New("no"):                    "unspecified error 1 0",
		syscall.EHOSTUNREACH:                "no route to host 1 0",
		cq.EFirewallAddr:                    "host address unreachable 1 0",
		fmt.Errorf("no: %w", cq.ErrInvalid): "invalid argument 1 0",
	} {
		check := func([]byte) error { return err }
		v, err := cq.CreateAnonymousAddresses("refused", cq.AddressOptions{Check: check})
		must(t, err)
		eq := events(t, cq.EventOptions{Size: 8, Lifetime: cq.Ephemeral})
		must(t, v.BindEvents(eq))
		must(t, v.InsertAsync(sockaddrs(0, 1), 1))
		wantEvents(t, eq, v.FID(), want, "addresses inserted 1 0")
		must(t, v.Close())
		must(t, eq.Close())
	}
}

// TestInsertAsyncCanceled: Close ends insertions that are under way, and each of their addresses is
// accounted for.
func TestInsertAsyncCanceled(t *testing.T) {
	began, leave := make(chan struct{}), make(chan struct{})
	v, err := cq.CreateAnonymousAddresses("slow", cq.AddressOptions{Check: func([]byte) error {
		began <- struct{}{}
		<-leave
		return nil
	}})
	must(t, err)
	eq := events(t, cq.EventOptions{Size: 16})
	must(t, v.BindEvents(eq))
	must(t, v.InsertAsync(sockaddrs(0, 3), 1))
	must(t, v.InsertAsync(sockaddrs(3, 5), 2))
	<-began
	closed := make(chan error)
	go func() { closed <- v.Close() }()
	eventually(t, "the close has begun", func() bool {
		return errors.Is(v.InsertAsync(sockaddrs(0, 100), 3), cq.ErrClosed) // else too many
	})
	close(leave)
	must(t, <-closed)
	wantEvents(t, eq, v.FID(), "operation canceled 1 1", "operation canceled 1 2",
		"addresses inserted 1 1", "operation canceled 2 0", "operation canceled 2 1",
		"addresses inserted 2 0")
}
