package hostile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/fabric"
)

// Processes of different users meet over sockets of the victim: at the first one each endpoint that
// connects meets one of its own, at the second one it has a connection, whose bytes come back.
// A peer may write its own objects alone, which the other one reads.

const (
	metSocket = "met-%d"
	metName   = "met" // of the memfds
	metWays   = 4     // goroutines for each socket
)

// met is by a meeting.
func met(ctx context.Context, conn *net.UnixConn) opens {
	return func(o fabric.Options) (*fabric.Endpoint, error) {
		return fabric.Meet(ctx, conn, everybody(), o)
	}
}

// victimMet meets whoever connects, beside its queue.
func victimMet(c *child) (err error) {
	serve := func() {
		var at [2]*net.UnixListener
		for i := range at {
			if at[i], err = wire.Listen("unix", c.path(fmt.Sprintf(metSocket, i))); err != nil {
				return
			}
		}
		over := fabric.ListenOver(at[1], everybody())
		var closed sync.WaitGroup
		closed.Go(func() {
			<-c.ctx.Done()
			_, _ = at[0].Close(), over.Close()
		})
		defer closed.Wait()
		c.manyTimes(metWays, func(rnd *rand.Rand, i int) {
			if i == 0 {
				c.meetAt(at[0], rnd)
			} else if conn, err := over.Accept(); err == nil {
				c.echo(conn)
			}
		})
	}
	return errors.Join(c.readQueues(serve), err)
}

func (c *child) meetAt(l *net.UnixListener, rnd *rand.Rand) {
	conn, err := l.AcceptUnix()
	if err != nil {
		return
	}
	defer conn.Close()
	ctx, cancel := limited(50 * time.Millisecond)
	defer cancel()
	c.oneLife(met(ctx, conn), rnd, c.verifier())
}

// dialMet connects to an attacker, and meets it in one way or the other.
func dialMet(c *child, rnd *rand.Rand, i int) {
	conn, err := c.dial(fmt.Sprintf(metSocket, i))
	if err != nil {
		return
	}
	defer conn.Close()
	ctx, cancel := limited(300 * time.Millisecond) // it may talk to others first
	defer cancel()
	if i == 0 {
		c.oneLife(met(ctx, conn), rnd, c.verifier())
		return
	}
	over := c.watch("dial")
	stream, err := fabric.DialOver(ctx, conn, everybody())
	over()
	if c.refusedBy("dial", err); err == nil {
		c.echo(stream)
	}
}

// echo gives back what comes, for some time.
func (c *child) echo(conn net.Conn) {
	defer c.watch("the echo of a connection")()
	_ = conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
	w, buf := c.verifier(), make([]byte, honestText)
	var n, at int
	var err error
	for err == nil {
		add(&c.did.Calls, 1)
		if n, err = conn.Read(buf[at:]); n > len(buf)-at {
			c.broken(&c.did.Unbounded, "%d bytes came into %d", n, len(buf)-at)
			break
		}
		if at += n; at == len(buf) {
			at = 0
			w.message(buf)
			_, err = conn.Write(buf)
		}
	}
	if errors.Is(err, syscall.ECONNRESET) {
		add(&c.did.GivenUp, 1)
	}
	c.assess("echo", err)
	c.assess("close a connection", conn.Close())
}

// newcomerMet sends to the victim in one way or the other.
func (c *child) newcomerMet(ctx context.Context, who uint64) (*poster, error) {
	way := c.rnd.IntN(2)
	conn, err := c.line("unix", fmt.Sprintf(metSocket, way))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if way == 0 {
		return nil, c.arrive(ctx, met(ctx, conn), who)
	}
	over, err := fabric.DialOver(ctx, conn, everybody())
	if err != nil {
		return nil, err
	}
	return nil, c.converses(over, who)
}

// attackMet meets the victim in one way or the other, and scribbles over what the other one reads.
func attackMet(c *child) error {
	return c.attackAs(func() (*guest, error) {
		way := c.rnd.IntN(2)
		conn, err := c.dial(fmt.Sprintf(metSocket, way))
		if err != nil {
			return nil, nil
		}
		defer conn.Close()
		ctx, cancel := limited(time.Second)
		defer cancel()
		if way == 0 {
			l, err := c.live(met(ctx, conn), c.split())
			if err != nil {
				return nil, nil
			}
			l.mem, _ = l.Alloc(lifePool / 2)
			return l.guest(func() error { return leaveSoon(l.close) }), nil
		}
		over, err := fabric.DialOver(ctx, conn, everybody())
		if err != nil {
			return nil, nil
		}
		return c.stream(over, over.Close), nil
	})
}
