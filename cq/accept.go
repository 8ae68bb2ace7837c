package cq

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/futex"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
)

// createMemfds makes a queue without a name in any file system. Its options are resolved.
func (q *core) createMemfds(name string, o shape) error {
	seals := kind.LaneSeals
	if o.others() {
		seals = shm.SealOthers
		if err := futex.HasWaitMany(); err != nil && o.Wait != WaitNone {
			return err
		}
	}
	spec := o.attrs().ReaderSpec(name)
	if o.others() {
		// The clock of this boot, which no memfd outlives: a successor has a higher one.
		spec.Generation = uint64(spin.Now()) | 1
	}
	obj, err := place.Sealed(spec, seals, kind.InitReader)
	if err != nil {
		return err
	}
	return q.init(nil, obj, name, o, true)
}

// Accept lets the process at the other end of a connected socket, a stream or a seqpacket, attach
// one writer to a queue that is [Unnamed]. That process calls [Attach] with [Over]. Accept may be
// called from anywhere, also while the queue is read, and for several connections at once. The
// writer gets a lane of its own: a new one, or one whose writer detached or is proved dead, which
// goes on where that writer stopped.
//
// With CrossUser the peer must be on Options.Allow, with the user and groups that it had when it
// connected. Its lane is always new; its row is free once the reader has read the former lane to
// its end. A peer that goes silent in the middle is given ten seconds (ErrTimedOut), whatever the
// context says. Peers of one user that have not brought a lane have no more than a quarter of the
// rows; further ones wait for these. The queue keeps a descriptor of the connection until the
// lane's end, and never reads from it.
//
// The connection stays the caller's, without a deadline. Further rendezvous may follow on it, one
// after the other; after an error it should be closed. Nothing depends on it once Accept has
// returned: the death of a writer is proved and noticed as with named queues. [Queue.Serve] is a
// loop around Accept.
//
// The context ends an Accept whose peer is silent; so does Close (ErrClosed). Other errors are
// ErrLanes; ErrPeerGone; shm.ErrOwner for a peer of another user; ErrCorrupt and shm.ErrVersion for
// a peer that breaks the protocol; and the peer's own reason if it refused. After an error the peer
// is told why if it waits, every descriptor that came is closed, and the queue is as it was.
func (q *core) Accept(ctx context.Context, conn *net.UnixConn) error {
	peer, err := q.identify(ctx, conn)
	if err == nil {
		_, err = q.acceptFrom(ctx, conn, peer, false)
	}
	return failed("accept", q.name, err)
}

// identify refuses peers that may not write to the queue, and tells them why. For a queue of one's
// own user there is no more to know of them, and it returns nil.
func (q *core) identify(ctx context.Context, conn *net.UnixConn) (peer *place.Peer, err error) {
	if q.opt.others() {
		peer, err = place.MeetPeer(conn, q.opt.Allow)
	} else {
		err = place.CheckPeer(conn)
	}
	if err != nil {
		refuseConn(ctx, conn, err)
	}
	return peer, err
}

// refuseConn tells a peer why it is not served.
func refuseConn(ctx context.Context, conn *net.UnixConn, err error) {
	place.Meet(ctx, conn, place.StepOffer).Finish(err)
}

// acceptFrom goes on with who that is. The peer is its own from now on. If it is limited, the peer
// has to begin in time.
func (q *core) acceptFrom(ctx context.Context, conn *net.UnixConn, peer *place.Peer,
	limited bool) (bit int, err error) {
	if q.side.Named() {
		return 0, &Error{Pkg: kind.Pkg, Op: "accept", Name: q.name, Err: syscall.EOPNOTSUPP,
			Hint: "writers find this queue by its name: use Attach"}
	}
	return q.side.Accept(ctx, conn, peer, limited)
}

// host is the queue as a rendezvous needs it.
type host struct{ q *core }

func (h host) Enter() bool { return h.q.guard.enterAny() }
func (h host) Leave()      { h.q.guard.leaveAny() }

func (h host) Enroll() error {
	_, err := h.q.enroll()
	return err
}

func (h host) Mark(row int) {
	h.q.bell.Mark(row)
	processWatch.nudge()
}

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
		conn, err := place.Accept(ctx, l, func(err error) { report(failed("serve", q.name, err)) })
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return failed("serve", q.name, err)
		}
		if err = q.admit(ctx, &all, places, conn, report); err != nil {
			_ = conn.Close()
			if ctx.Err() == nil {
				report(failed("serve", q.name, err))
			}
		}
	}
}

// admit finds a connection a place and serves it there. Who it is comes first: those who may not
// attach take nobody's place.
func (q *core) admit(ctx context.Context, all *sync.WaitGroup, places *place.Places,
	conn *net.UnixConn, report func(error)) error {
	peer, err := q.identify(ctx, conn)
	if err != nil {
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
