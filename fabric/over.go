package fabric

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// overListener implements net.Listener. Who connects is met in a goroutine of its own, so that one
// who is silent keeps nobody waiting.
type overListener struct {
	*net.UnixListener
	allow  *shm.AllowList
	over   context.Context // with why Accept ends
	end    context.CancelCauseFunc
	ready  chan *conn
	places *place.Places
	met    sync.WaitGroup
}

// ListenOver takes connections from processes of the users that allow has, nil of this one: each
// connects to the socket, and gets by [DialOver] what [Dial] describes, with bytes that go through
// shared memory. Neither side can write to the memory of the other. It takes 0.6 MiB on each side
// for each connection.
//
// The listener takes the socket over, and Close closes it. At once 128 are met, or wait for Accept:
// another one takes the place of the oldest of the user with most of them, unless its own user has
// as many. Who does not come to an end within 10 seconds is sent away. So is who does not answer
// the Close of a connection for as long: what it has not heard by then it does not hear.
func ListenOver(socket *net.UnixListener, allow *shm.AllowList) net.Listener {
	l := &overListener{UnixListener: socket, allow: allow, ready: make(chan *conn),
		places: place.NewPlaces(mostBacklog)}
	l.over, l.end = context.WithCancelCause(context.Background())
	_ = socket.SetDeadline(time.Time{})
	l.met.Go(l.serve)
	return l
}

// serve meets who connects.
func (l *overListener) serve() {
	for {
		socket, err := place.Accept(l.over, l.UnixListener, func(error) {})
		if err != nil {
			l.end(err)
			return
		}
		l.admit(socket)
	}
}

// admit has it met, if there is a place for one more of its user, or told that it is not.
func (l *overListener) admit(socket *net.UnixConn) {
	who, err := place.MeetPeer(socket, l.allow)
	ctx, cancel := context.WithCancelCause(l.over)
	var served *place.Served
	if err == nil {
		served, err = l.places.Take(who.UID, cancel)
	}
	meet := func() {
		defer l.places.Leave(served)
		defer cancel(nil)
		l.meet(ctx, socket, who, err)
	}
	if err == nil {
		l.met.Go(meet)
	} else {
		meet()
	}
}

// meet has Accept return the connection of who has connected.
func (l *overListener) meet(ctx context.Context, socket *net.UnixConn, who *place.Peer, err error) {
	soon, cancel := context.WithTimeout(ctx, place.MeetTimeout)
	defer cancel()
	m, err := openMux(func(o Options) (*Endpoint, error) { return meet(soon, socket, who, err, o) })
	_ = socket.Close()
	if err != nil {
		return
	}
	var one listener
	one.begin(m)
	stop := context.AfterFunc(soon, func() { _ = one.Close() })
	c, err := one.Accept()
	if stop() {
		_ = one.Close()
	}
	if err != nil {
		return
	}
	select {
	case l.ready <- c.(*conn):
	case <-ctx.Done():
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (l *overListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.over.Done():
		err := context.Cause(l.over)
		if op := new(net.OpError); errors.As(err, &op) {
			return nil, err
		}
		return nil, &net.OpError{Op: "accept", Net: network, Addr: l.Addr(), Err: err}
	}
}

// Close implements net.Listener. It waits for those that are met.
func (l *overListener) Close() error {
	l.end(net.ErrClosed)
	err := l.UnixListener.Close()
	l.met.Wait()
	return err
}

// DialOver has a connection with the process at the other end of a connected unix socket, where a
// listener of [ListenOver] has accepted it: of one of the users that allow has, nil is this one. It
// is as those of [Dial]. The socket stays the caller's, and should be closed. Errors are
// *[net.OpError], with those of [Meet].
func DialOver(ctx context.Context, socket *net.UnixConn, allow *shm.AllowList) (net.Conn, error) {
	m, err := openMux(func(o Options) (*Endpoint, error) { return Meet(ctx, socket, allow, o) })
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: socket.RemoteAddr(), Err: err}
	}
	m.e.bell.Lock()
	m.pin()
	go m.keep() // once ask sleeps, or it finds the peer gone before that is asked
	c, err := m.ask(m.e.byAddr[0]).answered(ctx)
	m.e.bell.Unlock()
	m.unpin()
	if err != nil {
		go m.leave()
		return nil, &net.OpError{Op: "dial", Net: network, Addr: socket.RemoteAddr(), Err: err}
	}
	return c, nil
}
