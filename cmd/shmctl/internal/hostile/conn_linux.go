package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/fabric"
)

// Connections by name are for processes of one user. A client may write its outbox and the mail of
// the listener, and a listener the same of its client. Who claims all rows keeps others out as long
// as a listener is there, so the victim has one after the other.

const connName = "conn"

// victimConn takes connections of attackers and newcomers, and dials attackers, beside its queue.
func victimConn(c *child) error {
	return c.readQueues(func() {
		var busy sync.WaitGroup
		busy.Go(func() { c.manyTimes(1, c.dialByName) })
		for c.ctx.Err() == nil {
			c.listenByName()
		}
		busy.Wait()
	})
}

// listenByName takes connections for some time.
func (c *child) listenByName() {
	over := c.watch("listen")
	l, err := fabric.Listen(c.dir, connName)
	over()
	if c.refusedBy("listen", err); err != nil {
		time.Sleep(time.Millisecond)
		return
	}
	var busy sync.WaitGroup
	for range metWays {
		busy.Go(func() {
			for {
				conn, err := l.Accept()
				if c.assess("accept", err); err != nil {
					return
				}
				c.echo(conn)
			}
		})
	}
	select {
	case <-c.ctx.Done():
	case <-time.After(300 * time.Millisecond):
	}
	over = c.watch("close of a listener")
	c.assess("close a listener", l.Close())
	over()
	busy.Wait()
}

// dialByName dials an attacker.
func (c *child) dialByName(_ *rand.Rand, i int) {
	over := c.watch("dial")
	ctx, cancel := limited(50 * time.Millisecond)
	conn, err := fabric.Dial(ctx, c.dir, fmt.Sprintf(attackerEnd, i))
	cancel()
	over()
	add(&c.did.Calls, 1)
	if c.refusedBy("dial", err); err != nil {
		time.Sleep(time.Millisecond)
		return
	}
	c.echo(conn)
}

// newcomerConn dials the victim.
func (c *child) newcomerConn(ctx context.Context, who uint64) (*poster, error) {
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	conn, err := fabric.Dial(ctx, c.dir, connName)
	if err != nil {
		return nil, err
	}
	return nil, c.converses(conn, who)
}

// converses sends some messages, and takes each back.
func (c *child) converses(conn net.Conn, who uint64) (err error) {
	_ = conn.SetDeadline(time.Now().Add(200 * time.Millisecond))
	for n := uint64(0); err == nil && n < 1+c.rnd.Uint64N(20); n++ {
		buf := honestMessage(c.Key, who, n)
		if _, err = conn.Write(buf); err == nil {
			_, err = io.ReadFull(conn, buf)
		}
		if err == nil {
			add(&c.did.Sent, 1)
		}
	}
	return errors.Join(err, conn.Close())
}

// attackConn is a client of the victim, or is dialed by it, and scribbles over all that it may
// write.
func attackConn(c *child) error {
	name := fmt.Sprintf(attackerEnd, c.Index)
	return c.attackAs(func() (*guest, error) {
		if c.rnd.IntN(2) == 0 {
			ctx, cancel := limited(100 * time.Millisecond)
			defer cancel()
			conn, err := fabric.Dial(ctx, c.dir, connName)
			if err != nil {
				return nil, c.tires()
			}
			return c.stream(conn, conn.Close), nil
		}
		l, err := fabric.Listen(c.dir, name)
		if err != nil { // what it had before is too broken
			_ = os.Remove(filepath.Join(c.Shm, name))
			return nil, c.tires()
		}
		late := time.AfterFunc(100*time.Millisecond, func() { _ = l.Close() })
		conn, err := l.Accept()
		if late.Stop(); err != nil {
			return nil, c.tires()
		}
		return c.stream(conn, func() error { return errors.Join(conn.Close(), l.Close()) }), nil
	})
}

// tires has the process end now and then: what all its connections share can be too broken.
func (c *child) tires() error {
	if c.rnd.IntN(8) == 0 {
		return errOver
	}
	return nil
}

// stream writes to a connection while its memory is scribbled over.
func (c *child) stream(conn net.Conn, closes func() error) *guest {
	add(&c.did.Attaches, 1)
	buf := make([]byte, wire.PayloadMaxBytes)
	return &guest{streams: true, play: func() {
		_ = conn.SetDeadline(time.Now().Add(time.Millisecond))
		_, _ = conn.Write(buf)
		_, _ = conn.Read(buf)
	}, leave: func() error { return leaveSoon(closes) }}
}
