package device

import (
	"context"
	"net"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// maxLaneBytes bounds what attaching to a queue of the peer's may take of memory: the peer says how
// large its lanes are, and we make them.
const maxLaneBytes = 16 << 20

// attachQueue becomes a writer of a queue of the peer's, for up to most bytes.
func attachQueue(ctx context.Context, conn *net.UnixConn, allow *shm.AllowList,
	most uint64) (*cq.Writer, error) {
	return cq.Attach(ctx, cq.Over(conn), cq.WriterOptions{Trust: cq.CrossUser, Allow: allow,
		MaxBytes: most})
}

// newCommands makes the queue that one application submits to. There is to be room for a return of
// every frame, a send from every slot, and a batch: slots of sends that are refused in it are free
// before its entries are. A return must never find the queue full.
func newCommands(entries int, allow *shm.AllowList) (*cq.Queue, error) {
	return cq.Create(cq.Unnamed("commands"), cq.Options{Size: entries, MaxLanes: 1, Wait: cq.WaitFD,
		Trust: cq.CrossUser, Allow: allow})
}

// newCompletions makes the queue that an application reads.
func newCompletions(o cq.Options, allow *shm.AllowList) (*cq.Queue, error) {
	o.Trust, o.Allow = cq.CrossUser, allow
	return cq.Create(cq.Unnamed("completions"), o)
}

// watch ends the reading of a connection when its other end hangs up, or when the process there is
// gone: a child of it may hold the connection.
func watch(p *place.Peer, conn *net.UnixConn) { p.Watch(func() { _ = conn.CloseRead() }) }

// hangUp ends a connection for the other side, whoever holds descriptors of ours. Queues do.
func hangUp(conn *net.UnixConn) error {
	_ = conn.CloseRead()
	_ = conn.CloseWrite()
	return conn.Close()
}
