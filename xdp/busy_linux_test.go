package xdp_test

import (
	"context"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

// TestBusyAndClosed: a socket that waits for a queue which another socket on its UMEM has does not
// keep that one from being closed, and gets the queue then.
func TestBusyAndClosed(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{Queues: 2})
	umem, err := xdp.NewUMEM(xdp.UMEMOptions{Frames: 64})
	must(t, err)
	defer func() { must(t, umem.Close(t.Context())) }()
	open := func(queue uint32) (s *xdp.Socket, err error) {
		err = pair.B.Do(func() (err error) {
			s, err = xdp.Open(context.Background(), pair.B.Name, queue, umem,
				xdp.Options{Frames: 16, SendFrames: 8, BusyTimeout: patience})
			return err
		})
		return s, err
	}
	first, err := open(1)
	shmtest.Require(t, "xdp", err)
	defer func() { must(t, first.Close()) }()
	before, err := open(0)
	must(t, err)
	type opened struct {
		s   *xdp.Socket
		err error
	}
	waiting := make(chan opened)
	go func() {
		s, err := open(0)
		waiting <- opened{s, err}
	}()
	time.Sleep(50 * time.Millisecond) // it has tried in vain
	must(t, before.Close())
	o := <-waiting
	must(t, o.err) // had it kept the other one from closing until it gave up, it would be busy
	must(t, o.s.Close())
}
