package device

import (
	"context"
	"net"

	"github.com/shmring/shmring/cq"
)

// attachQueue becomes a writer of the application's queue.
func attachQueue(ctx context.Context, conn *net.UnixConn) (*cq.Writer, error) {
	return cq.AttachConn(ctx, conn, cq.WriterOptions{})
}

// newCommands makes the queue that one application submits to. There is room for a return of every
// frame and a send from every slot.
func newCommands(entries int) (*cq.Queue, error) {
	return cq.CreateAnonymous("commands", cq.Options{Size: entries, MaxLanes: 1, Wait: cq.WaitFD})
}

// newCompletions makes the queue that an application reads.
func newCompletions(o cq.Options) (*cq.Queue, error) {
	return cq.CreateAnonymous("completions", o)
}
