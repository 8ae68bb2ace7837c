package torture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/futex"
)

// Connections, beside the endpoints of the role: each process has a listener that echoes, under a
// name and at a socket, and dials those of all places. What comes back must be what was written.
// Who hears of an end or a reset before that must have a reason: the process that it dialed is
// dead, or closed the listener at which the connection waited.

func listenerName(place int) string { return fmt.Sprintf("listener-%d", place) }

func (c *child) listenerSocket(place int) *net.UnixAddr {
	return &net.UnixAddr{Name: fmt.Sprintf("%s/listener-%d", c.Base, place), Net: "unix"}
}

// dialOver connects to the socket of a place. Who listened there may have been killed.
func (c *child) dialOver(ctx context.Context, place int) (net.Conn, error) {
	socket, err := net.DialUnix("unix", nil, c.listenerSocket(place))
	if err != nil {
		return nil, syscall.ECONNREFUSED
	}
	defer socket.Close()
	return fabric.DialOver(ctx, socket, nil)
}

// listenAll has one listener after the other, and dials, until the run ends.
func (c *child) listenAll(_ context.Context, rnd *rand.Rand) error {
	if futex.HasWaitMany() != nil {
		return nil
	}
	listens := &c.ledger.talks().place(c.Index)[endListens]
	for c.ledger.phase() == phaseRun {
		l, err := fabric.Listen(c.dir, listenerName(c.Index))
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		at := c.listenerSocket(c.Index)
		_ = os.Remove(at.Name) // of one that was killed
		socket, err := net.ListenUnix("unix", at)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		over := fabric.ListenOver(socket, nil)
		listens.Add(1)
		if c.Step == crash.ConnRefusing.String() {
			c.crowdListener()
		}
		var echoes sync.WaitGroup
		echoes.Go(func() { c.echoAll(l, &echoes) })
		echoes.Go(func() { c.echoAll(over, &echoes) })
		for range 1 + rnd.IntN(100) {
			if c.hushed() {
				nap(time.Millisecond)
			} else if c.ledger.phase() == phaseRun {
				c.stream(rnd)
			}
		}
		listens.Add(1) // before it closes
		if err = errors.Join(l.Close(), over.Close()); err != nil {
			return fmt.Errorf("close: %w", err)
		}
		echoes.Wait()
	}
	return nil
}

// crowdListener has this process's listener refuse somebody, whom nobody accepts meanwhile.
func (c *child) crowdListener() {
	for range 140 { // of whom 128 can wait
		if conn, err := fabric.Dial(context.Background(), c.dir, listenerName(c.Index)); err == nil {
			defer conn.Close()
		}
	}
}

func (c *child) echoAll(l net.Listener, echoes *sync.WaitGroup) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			c.tell(kindFailed, "accept: %v", err)
			return
		}
		echoes.Go(func() {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		})
	}
}

// stream has one connection, to a process that may be this one. Sometimes it gives up.
func (c *child) stream(rnd *rand.Rand) {
	at := c.askFor(rnd.IntN(endpoints), endListens)
	ctx, cancel := context.WithCancel(context.Background())
	if rnd.IntN(8) == 0 {
		time.AfterFunc(time.Duration(rnd.IntN(1000))*time.Microsecond, cancel)
	}
	dial := func() (net.Conn, error) { return fabric.Dial(ctx, c.dir, listenerName(at.place)) }
	if rnd.IntN(4) == 0 || strings.HasPrefix(c.Step, "meet-") {
		dial = func() (net.Conn, error) { return c.dialOver(ctx, at.place) }
	}
	conn, err := dial()
	gaveUp := ctx.Err() != nil
	cancel()
	if err == nil {
		err = c.echoed(conn, rnd)
	} else if errors.Is(err, syscall.ECONNREFUSED) || gaveUp && errors.Is(err, context.Canceled) {
		nap(time.Millisecond)
		return
	}
	at.became(endEchoed, endReset, err, io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET,
		syscall.ENOTCONN)
}

// echoed writes some bytes, and expects them back.
func (c *child) echoed(conn net.Conn, rnd *rand.Rand) (err error) {
	defer func() {
		if err2 := conn.Close(); err == nil && err2 != nil {
			err = err2
		}
	}()
	at, n := rnd.IntN(256), 1+rnd.IntN(2000)
	if rnd.IntN(4) == 0 {
		n = 1 + rnd.IntN(endLongest)
	}
	text, got := endText()[at:at+n], make([]byte, n)
	var wrote sync.WaitGroup
	var failed error
	half := rnd.IntN(2) == 0
	wrote.Go(func() {
		if _, failed = conn.Write(text); failed == nil && half {
			failed = conn.(interface{ CloseWrite() error }).CloseWrite()
		}
	})
	k, err := io.ReadFull(conn, got)
	wrote.Wait()
	if !bytes.Equal(got[:k], text[:k]) {
		c.tell(kindUnpublished, "other bytes came back, of %d", n)
	}
	if err == nil && half {
		if k, err = conn.Read(make([]byte, 1)); k > 0 {
			c.tell(kindDuplicate, "more came back than was written")
		} else if err == io.EOF {
			err = nil
		}
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return errors.Join(err, failed)
}
