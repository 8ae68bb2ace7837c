package cq

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
)

// meetTimeout is how long Serve waits for a peer that connected and does not attach, and either
// side for another user's next message once it has begun.
var meetTimeout = 10 * time.Second // a variable for tests only

// Serve accepts writers that connect to l, until l or the queue is closed, and returns why it
// ended: ErrClosed, or the listener's error (net.ErrClosed). It may be called from anywhere,
// several times, and for several queues with one listener. The listener stays the caller's. A peer
// that breaks the protocol, or has not attached after 10 seconds, loses its connection; nothing
// else happens.
//
// report may be nil. It is told of such a peer, from several goroutines; of a peer that may not
// attach; and of a connection that cannot be accepted for want of descriptors or memory, which is
// tried again. In the last two cases Serve accepts nobody until report returns. So a user who may
// not attach, and connects again and again, is no faster than report and costs no memory. report
// should therefore not block: it should drop what it would have to wait for, or leave that to
// another goroutine.
//
// Each connection is kept until its peer closes it. Its end makes the reader look at the lane once
// more, but is no proof of a death: the lane goes to another writer only if this one has closed it
// or is proved dead. At most twice as many connections as there are lanes are served at once;
// further ones wait.
//
// With CrossUser the queue itself keeps the connections of its writers, and the bound holds for
// those that have not attached. A connection beyond it does not wait, or one silent user would make
// all others wait. It takes the place of the oldest connection of the user who has most of them,
// unless its own user has as many. The one that loses gets ErrBusy, or finds its connection closed
// (ErrPeerGone), and can try again. The 10 seconds do not run while a peer waits for other peers of
// its user to attach, since one of these may be stopped.
func (q *core) Serve(l *net.UnixListener, report func(error)) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	if report == nil {
		report = func(error) {}
	}
	var all sync.WaitGroup
	defer all.Wait()
	left := make(chan struct{})
	defer close(left)
	all.Go(func() {
		select {
		case <-q.gone:
			cancel(ErrClosed)
		case <-left:
			cancel(net.ErrClosed)
		}
	})
	places := place.NewPlaces(2 * q.opt.rows())
	for {
		if !q.opt.others() {
			if err := places.Await(ctx); err != nil {
				return err
			}
		}
		conn, err := place.Accept(ctx, l)
		if err == nil {
			err = q.admit(ctx, &all, places, conn, report)
			if err != nil {
				_ = conn.Close()
			}
			if err != nil && ctx.Err() == nil {
				report(failed("serve", q.name, err))
			}
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !kind.Starved(err) {
			return failed("serve", q.name, err)
		}
		// Others have what it takes, and it does not end what is served.
		report(failed("serve", q.name, err))
		select {
		case <-time.After(acceptAgain):
		case <-ctx.Done():
		}
	}
}

// admit finds a connection a place and serves it there. Who it is comes first: those who may not
// attach take nobody's place.
func (q *core) admit(ctx context.Context, all *sync.WaitGroup, places *place.Places,
	conn *net.UnixConn, report func(error)) error {
	peer, err := q.identify(conn)
	if err != nil {
		refuseConn(ctx, conn, err)
		return err
	}
	user := 0
	if peer != nil {
		user = peer.UID
	}
	one, cancel := context.WithCancelCause(ctx)
	given, err := places.Take(user, cancel)
	if err != nil {
		refuseConn(ctx, conn, err)
		peer.Close()
		cancel(nil)
		return err
	}
	all.Go(func() {
		defer places.Leave(given)
		defer cancel(nil)
		if err := q.serve(one, conn, peer); err != nil && ctx.Err() == nil {
			report(err)
		}
	})
	return nil
}

// acceptAgain is how long Serve, and a reader who cannot open a lane, wait for descriptors or
// memory to be free again.
const acceptAgain = 50 * time.Millisecond

// serve attaches one writer and holds its life line. The context ends with the queue, or when the
// place is somebody else's.
func (q *core) serve(ctx context.Context, conn *net.UnixConn, peer *place.Peer) error {
	defer conn.Close()
	bit, err := q.acceptFrom(ctx, conn, peer, true)
	if err != nil {
		return failed("accept", q.name, err)
	}
	if q.opt.others() {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var one [1]byte
	n, _ := conn.Read(one[:]) // descriptors that come with it are lost on the way
	if q.guard.enterAny() {
		q.bell.Mark(bit)
		q.guard.leaveAny()
	}
	if n > 0 {
		return kind.Refuse("serve", q.name, "message", "more", "the end of the connection", ErrCorrupt)
	}
	return nil
}
