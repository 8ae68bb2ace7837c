package place

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// accepting is what those share who wait at one listener. It has one deadline for them all, so a
// call that ends disturbs the others, and must not take the deadline back before each one that ends
// has met it.
type accepting struct {
	calls  int           // of Accept
	ending int           // those whose context has ended; the deadline is past while there are any
	times  uint64        // that the deadline was set
	calm   chan struct{} // closed when the deadline was taken back; nil while there is none
}

var (
	acceptsMu sync.Mutex
	accepts   = map[*net.UnixListener]*accepting{}
)

// Accept accepts a connection unless the context ends before, whose cause is the error then. Any
// number of calls may wait at one listener, each with a context of its own, and end as theirs does.
// The listener stays open, and its deadline is ours meanwhile. Other errors are those of
// [net.UnixListener.AcceptUnix].
func Accept(ctx context.Context, l *net.UnixListener) (*net.UnixConn, error) {
	a := enterAccept(l)
	defer a.leave(l)
	for ctx.Err() == nil {
		times, calm := a.look()
		if calm != nil {
			select {
			case <-calm:
			case <-ctx.Done():
			}
			continue
		}
		conn, err := a.once(ctx, l)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return conn, err
		}
		if now, _ := a.look(); ctx.Err() == nil && now == times {
			return nil, err // a deadline that the caller has set
		}
	}
	return nil, context.Cause(ctx)
}

func enterAccept(l *net.UnixListener) *accepting {
	acceptsMu.Lock()
	defer acceptsMu.Unlock()
	a := accepts[l]
	if a == nil {
		a = &accepting{}
		accepts[l] = a
	}
	a.calls++
	return a
}

func (a *accepting) leave(l *net.UnixListener) {
	acceptsMu.Lock()
	defer acceptsMu.Unlock()
	if a.calls--; a.calls == 0 {
		delete(accepts, l)
	}
}

// look returns how often the deadline was set, and if that is past, what ends with it.
func (a *accepting) look() (times uint64, calm <-chan struct{}) {
	acceptsMu.Lock()
	defer acceptsMu.Unlock()
	return a.times, a.calm
}

// once accepts until the deadline, which is past from the end of the context to the end of the
// call.
func (a *accepting) once(ctx context.Context, l *net.UnixListener) (*net.UnixConn, error) {
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(fired)
		a.interrupt(l)
	})
	conn, err := l.AcceptUnix()
	if !stop() {
		<-fired
		a.resume(l)
	}
	return conn, err
}

func (a *accepting) interrupt(l *net.UnixListener) {
	acceptsMu.Lock()
	defer acceptsMu.Unlock()
	a.times++
	if a.ending++; a.ending == 1 {
		a.calm = make(chan struct{})
		_ = l.SetDeadline(time.Unix(1, 0)) // fails if it is closed, and so does the call
	}
}

func (a *accepting) resume(l *net.UnixListener) {
	acceptsMu.Lock()
	defer acceptsMu.Unlock()
	if a.ending--; a.ending == 0 {
		_ = l.SetDeadline(time.Time{})
		close(a.calm)
		a.calm = nil
	}
}
