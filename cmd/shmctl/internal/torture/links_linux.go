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

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/crash"
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

// listen has a listener for a while, and dials.
func (c *child) listen(_ context.Context, rnd *rand.Rand, _ int) error {
	listens := &c.ledger.talks().place(c.Index)[endListens]
	l, err := fabric.Listen(c.dir, listenerName(c.Index))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	socket, err := wire.Listen("unix", c.listenerSocket(c.Index).Name)
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
	at.became(endEchoed, endReset, survives, err, io.ErrUnexpectedEOF, syscall.EPIPE,
		syscall.ECONNRESET, syscall.ENOTCONN)
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

// Connections by events, beside those of streams: each process answers requests under a name, and
// asks those of all places. A request says what its client wants: that it is rejected, or which
// side is to end the connection. Messages come back meanwhile, and the last one comes before the
// end. An end that nobody wanted must have a reason, as that of a stream.

const (
	linkReject = "reject"
	linkShut   = "shut"  // the client does
	linkClose  = "close" // its endpoint
	linkHang   = "hang"  // the server ends it, after the last message
	linkNo     = "no"
	linkYes    = "yes"
	linkBye    = "bye"
	linkLast   = "last"
)

func passiveName(place int) string { return fmt.Sprintf("passive-%d", place) }

// linked is an endpoint with a connection, and what it reports to.
type linked struct {
	wire.Endpoint
	events *cq.EventQueue
	buf    [64]byte
}

func linkEvents() (*cq.EventQueue, error) {
	return cq.CreateEvents(cq.Unnamed("links"),
		cq.EventOptions{Size: 64, Write: true, Shared: true})
}

func (c *child) openLinked(name string, r *fabric.Request) (e *linked, err error) {
	e = &linked{}
	if e.events, err = linkEvents(); err != nil {
		return nil, err
	}
	e.Endpoint, err = wire.OpenEndpoint(c.dir, name, 16,
		fabric.Options{Peers: 2, Events: e.events, Request: r})
	if err != nil {
		return nil, errors.Join(err, e.events.Close())
	}
	return e, nil
}

func (e *linked) close() error { return errors.Join(e.Close(), e.events.Close()) }

// event waits for what becomes of the connection. An error event is its error, with the data.
func (e *linked) event(ctx context.Context) (is cq.EventKind, data string, err error) {
	ev := cq.Event{Payload: make([]byte, 0, 256)}
	_, err = e.events.ReadContext(ctx, &ev, cq.ReadOptions{})
	if errors.Is(err, cq.ErrAvail) {
		failed := cq.EventError{ErrData: make([]byte, 0, 256)}
		if _, err = e.events.ReadErr(&failed, 0); err == nil {
			err = &failed
		}
		return 0, string(failed.ErrData), err
	}
	if err != nil {
		return 0, "", err
	}
	m, err := cq.ParseCMEntry(ev.Payload)
	return ev.Event, string(m.Data), err
}

// hears waits for a message. ECANCELED: none comes any more.
func (e *linked) hears(ctx context.Context) (text string, err error) {
	if err = e.Recv(e.buf[:], 1); err != nil {
		return "", err
	}
	for heard := false; !heard && err == nil; {
		var failed error
		_, err = e.Take(func(dst []cq.Entry) (int, error) {
			return cq.ReadContext(ctx, e.Queue, dst[:1], cq.ReadOptions{})
		}, func(c *cq.ErrorEntry) {
			// Not a send, whose peer is said to be gone by the receive too.
			if c.Flags&cq.FlagRecv == 0 {
				return
			}
			if heard, text = true, string(e.buf[:c.Len]); c.Err != 0 {
				text, failed = "", c.Err
			}
		})
		err = errors.Join(err, failed)
	}
	return text, err
}

// says sends a message, unless its connection has ended.
func (e *linked) says(ctx context.Context, text string) error {
	err := e.SendContext(ctx, &fabric.Msg{Buf: []byte(text), Flags: cq.FlagInjectCall})
	if isAny(err, fabric.ErrNotConnected, fabric.ErrPeerDied, fabric.ErrPeerClosed, fabric.ErrNoPeer) {
		return nil // which is heard
	}
	return err
}

// answer has a passive endpoint that answers requests for a while, and has their connections until
// the context ends.
func (c *child) answer(ctx context.Context, rnd *rand.Rand, n int) (err error) {
	open, stop := context.WithTimeout(ctx, time.Duration(rnd.IntN(300))*time.Millisecond)
	defer stop()
	links := &c.ledger.talks().place(c.Index)[endLinks]
	events, err := linkEvents()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, events.Close()) }()
	p, err := fabric.ListenEvents(c.dir, passiveName(c.Index), events)
	if err != nil {
		return fmt.Errorf("listen by events: %w", err)
	}
	links.Add(1)
	var answers sync.WaitGroup
	defer answers.Wait()
	defer func() {
		links.Add(1) // before it closes
		err = errors.Join(err, p.Close())
	}()
	for k := 0; ; k++ {
		ev := cq.Event{Payload: make([]byte, 0, 512)}
		if _, err := events.ReadContext(open, &ev, cq.ReadOptions{}); err != nil {
			return nil // it is time
		}
		r, err := p.Request(&ev)
		if err != nil {
			return fmt.Errorf("request: %w", err)
		}
		answers.Go(func() {
			if err := c.answerLink(ctx, fmt.Sprintf("answer-%d-%d-%d", c.pid, n, k), r); err != nil {
				c.tell(kindFailed, "answer: %v", err)
			}
		})
	}
}

// answerLink is what becomes of a request at its server.
func (c *child) answerLink(ctx context.Context, name string, r *fabric.Request) (err error) {
	late := func(err error) bool {
		return isAny(err, syscall.ECONNABORTED, fabric.ErrNotFound, os.ErrClosed) || ctx.Err() != nil
	}
	if string(r.Data) == linkReject {
		if err = r.Reject([]byte(linkNo)); late(err) {
			return nil
		}
		return err
	}
	e, err := c.openLinked(name, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if err = e.Accept([]byte(linkYes)); err == nil {
		_, _, err = e.event(ctx)
	}
	if late(err) {
		return nil
	}
	for err == nil {
		var text string
		if text, err = e.hears(ctx); err == nil && text == linkBye {
			if err = e.says(ctx, linkLast); err == nil {
				if err = e.Shutdown(); errors.Is(err, fabric.ErrNotConnected) {
					err = nil
				}
			}
		} else if err == nil {
			err = e.says(ctx, text)
		}
	}
	if errors.Is(err, syscall.ECANCELED) {
		var is cq.EventKind
		if is, _, err = e.event(ctx); err == nil && is != cq.EventShutdown {
			err = fmt.Errorf("%v after the end of %s", is, name)
		}
	}
	if late(err) {
		return nil
	}
	return err
}

// ask asks a place for a connection.
func (c *child) ask(ctx context.Context, rnd *rand.Rand, _ int) error {
	if c.hushed() {
		nap(time.Millisecond)
		return nil
	}
	at := c.askFor(rnd.IntN(endpoints), endLinks)
	e, err := c.openLinked(fmt.Sprintf("asker-%d-%d", c.Index, c.pid), nil)
	if err != nil {
		return err
	}
	done, why := c.askLink(ctx, e, at.place, rnd)
	if ctx.Err() == nil && c.ledger.phase() == phaseRun && (done || why != nil) {
		at.became(endLinked, endUnlinked, survives, why, syscall.ECONNREFUSED, errLinkEnded)
	}
	return e.close()
}

// asked is a place that was asked for a connection, with what it had then.
type asked struct {
	c             *child
	place, listen int
	by, times     uint64
}

// askFor says that a place is asked. listen is the word of what it has for that.
func (c *child) askFor(place, listen int) asked {
	there := c.ledger.talks().place(place)
	return asked{c, place, listen, there[endBy].Load(), there[listen].Load()}
}

// same tells that the place has what it had.
func (a asked) same() bool {
	there := a.c.ledger.talks().place(a.place)
	return a.times == there[a.listen].Load() && a.by == there[endBy].Load()
}

// became counts a connection as one that went well, or as cut short for want of the place. Its
// error may be one of some. survives tells whether a process does, as long as it has what it had.
func (a asked) became(well, cut int, survives func(pid int, has func() bool) bool, err error,
	may ...error) {
	switch t := a.c.ledger.talks(); {
	case err == nil:
		t[well].Add(1)
	case !isAny(err, may...):
		a.c.tell(kindBroken, "a connection to %d: %v", a.place, err)
	case survives(int(a.by), a.same):
		a.c.tell(kindUsurped, "a connection to %d ended, though that lives: %v", a.place, err)
	default:
		t[cut].Add(1)
	}
}

var errLinkEnded = errors.New("it ended before its time")

// askLink is what becomes of a request at its client. Without an error and not done, it gave up.
func (c *child) askLink(ctx context.Context, e *linked, place int, rnd *rand.Rand) (bool, error) {
	want := []string{linkReject, linkShut, linkClose, linkHang}[rnd.IntN(4)]
	if err := e.Connect(passiveName(place), []byte(want)); err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) { // nobody listens
			nap(time.Millisecond)
			return false, nil
		}
		return false, err
	}
	if rnd.IntN(6) == 0 {
		return false, nil
	}
	is, data, err := e.event(ctx)
	switch {
	case err != nil && data == linkNo && want == linkReject:
		return true, nil
	case err != nil:
		return false, err
	case is != cq.EventConnected || data != linkYes || want == linkReject:
		return false, fmt.Errorf("%v with %q, asked for %q", is, data, want)
	}
	say := func(text, want string) error {
		if err := e.says(ctx, text); err != nil {
			return err
		}
		got, err := e.hears(ctx)
		if errors.Is(err, syscall.ECANCELED) {
			return errLinkEnded
		}
		if err == nil && got != want {
			c.tell(kindUnpublished, "%q came for %q", got, text)
		}
		return err
	}
	for i := range rnd.IntN(8) {
		text := fmt.Sprint(i, " of ", c.pid)
		if err := say(text, text); err != nil {
			return false, err
		}
	}
	switch want {
	case linkClose:
		return true, nil
	case linkHang:
		err = say(linkBye, linkLast)
	default:
		if err = e.Shutdown(); errors.Is(err, fabric.ErrNotConnected) {
			err = errLinkEnded
		}
	}
	if err != nil {
		return false, err
	}
	if is, _, err = e.event(ctx); err == nil && is != cq.EventShutdown {
		err = fmt.Errorf("%v in place of the end", is)
	}
	return err == nil, err
}
