package hostile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
)

// writer is one of completions or of events.
type writer interface {
	Stats() cq.WriterStats
	Close() error
}

// kind is how writers of a kind attach, and what those do who are honest, attacked, or attack.
type kind struct {
	attach func(context.Context, *net.UnixConn, cq.WriterOptions) (writer, error)
	// post posts what an honest one posts as its nth, and empty tells whether all of it is read.
	post  func(w writer, key, who, n uint64) error
	empty func(writer) bool
	// use makes one call of one kind, of a victim or an attacker.
	use func(rnd *rand.Rand, w writer) (what string, err error)
	// read makes the k-th queue of a victim, and lure one of an attacker, which drain reads.
	read func(s *served, k int) error
	lure func(c *child) (q accepter, drain func(), err error)
}

var completions = &kind{
	attach: func(ctx context.Context, conn *net.UnixConn, o cq.WriterOptions) (writer, error) {
		return cq.Attach(ctx, cq.Over(conn), o)
	},
	post: func(w writer, key, who, n uint64) error {
		e := honestEntry(key, who, n)
		return w.(*cq.Writer).Post(&e)
	},
	empty: func(w writer) bool { return w.(*cq.Writer).Free() == w.Stats().Size },
	use: func(rnd *rand.Rand, w writer) (what string, err error) {
		return postSomehow(rnd, w.(*cq.Writer))
	},
	read: readCompletions, lure: lureCompletions,
}

var events = &kind{
	attach: func(ctx context.Context, conn *net.UnixConn, o cq.WriterOptions) (writer, error) {
		return cq.AttachEvents(ctx, cq.Over(conn), o)
	},
	post: func(w writer, key, who, n uint64) error {
		ev := honestEvent(key, who, n)
		_, err := w.(*cq.EventWriter).Write(&ev)
		return err
	},
	empty: func(writer) bool { return true }, // what it left is read all the same
	use: func(rnd *rand.Rand, w writer) (what string, err error) {
		return writeSomehow(rnd, w.(*cq.EventWriter))
	},
	read: readEvents, lure: lureEvents,
}

// full tells that there is no room, which is the same of all that is posted.
func full(err error) bool { return errors.Is(err, cq.ErrFull) || errors.Is(err, syscall.EAGAIN) }

// enterWriter attaches to a queue of the victim, a bystander to that of its number.
func (c *child) enterWriter(ctx context.Context, who uint64) (*poster, error) {
	k := c.Index
	if c.Role == roleNewcomer {
		k = c.rnd.IntN(c.s.queues)
	}
	conn, err := c.line("unix", fmt.Sprintf(queueSocket, k))
	if err != nil {
		return nil, err
	}
	w, err := c.s.kind.attach(ctx, conn, c.writerOptions())
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &poster{post: func(n uint64) error { return c.s.kind.post(w, c.Key, who, n) },
		empty: func() bool { return c.s.kind.empty(w) }, again: c.s.trust == cq.SameUser,
		close: func() error { return errors.Join(w.Close(), conn.Close()) }}, nil
}

// guest is what an attacker has for a while.
type guest struct {
	// play is what it does while its memory is scribbled over, again and again; beside it drain, and
	// begin before. Both may be nil.
	play, drain, begin func()
	raids              int          // how often that is; 0 is once
	leave              func() error // an error ends the process
	streams            bool         // it is an end of a connection
}

// errOver ends a process of an attacker: the next one is another one.
var errOver = errors.New("it has had enough")

// attackAs comes, has all that it shares scribbled over, and leaves, again and again. come is nil
// when there was nobody to come to.
func (c *child) attackAs(come func() (*guest, error)) error {
	c.ready()
	for c.ctx.Err() == nil {
		g, err := come()
		if g == nil && err == nil {
			time.Sleep(time.Millisecond)
			continue
		}
		for n := 0; err == nil && n < max(g.raids, 1); n++ {
			c.raid(g)
		}
		if err == nil {
			err = g.leave()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// attackLane has writers whose lanes are scribbled over while they post.
func attackLane(c *child) error {
	return c.attackAs(func() (*guest, error) {
		if c.rnd.IntN(100) == 0 {
			return nil, errOver // the next process has lanes again that this one cannot give back
		}
		conn, err := c.dial(fmt.Sprintf(queueSocket, c.rnd.IntN(c.s.queues)))
		if err != nil {
			return nil, nil
		}
		ctx, cancel := limited(5 * time.Second)
		defer cancel()
		w, err := c.s.kind.attach(ctx, conn, c.writerOptions())
		if err != nil {
			_ = conn.Close()
			if errors.Is(err, cq.ErrLanes) {
				return nil, errOver
			}
			return nil, nil
		}
		add(&c.did.Attaches, 1)
		rnd := c.split()
		return &guest{play: func() {
			add(&c.did.Mutations, 1)
			if _, err := c.s.kind.use(rnd, w); err != nil {
				time.Sleep(20 * time.Microsecond)
			}
		}, leave: func() error {
			if c.rnd.IntN(8) > 0 {
				_ = w.Close()
			}
			_ = conn.Close()
			return nil
		}}, nil
	})
}

// postOnce attaches a writer to an attacker's queue and posts until that is no use any more.
func postOnce(c *child, rnd *rand.Rand, i int) {
	k := c.s.writes
	conn, err := c.line("unix", fmt.Sprintf(attackerSocket, i))
	if err != nil { // it is about to come
		time.Sleep(time.Millisecond)
		return
	}
	defer conn.Close()
	over := c.watch("attach")
	ctx, cancel := limited(50 * time.Millisecond)
	w, err := k.attach(ctx, conn, c.writerOptions())
	cancel()
	over()
	if err != nil {
		add(&c.did.Calls, 1)
		c.refusedBy("attach", err)
		return
	}
	until := time.Now().Add(time.Duration(1+rnd.IntN(40)) * time.Millisecond)
	for time.Now().Before(until) && c.ctx.Err() == nil {
		before := w.Stats().Wakes
		over := c.watch("a post")
		what, err := k.use(rnd, w)
		over()
		c.steps(what, w.Stats().Wakes-before, plainBound)
		if lane := new(cq.LaneError); errors.As(err, &lane) {
			add(&c.did.GivenUp, 1)
		}
		c.assess(what, err)
		if full(err) {
			time.Sleep(20 * time.Microsecond)
		} else if err != nil && rnd.IntN(8) == 0 { // most callers stop; some try again and again
			break
		}
	}
	defer c.watch("close of a writer")()
	c.assess("close", w.Close())
}

const attackerSocket = "attacker-%d"

// poll waits until a descriptor is readable, or that many milliseconds have passed.
func poll(o interface{ GetWait() (cq.Native, error) }, ms int) {
	wait, _ := o.GetWait()
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(wait.FD), Events: unix.POLLIN}}, ms)
}

// anyEntry looks like anything.
func anyEntry(rnd *rand.Rand) cq.Entry {
	return cq.Entry{Context: rnd.Uint64N(4), Flags: cq.Flags(rnd.Uint64() >> rnd.IntN(64)),
		Len: rnd.Uint64() >> rnd.IntN(64), Tag: rnd.Uint64N(1 << 20), Data: rnd.Uint64(),
		Meta: cq.Meta(rnd.Uint64() >> rnd.IntN(64))}
}

// postSomehow makes one call of one kind.
func postSomehow(rnd *rand.Rand, w *cq.Writer) (what string, err error) {
	e := anyEntry(rnd)
	switch rnd.IntN(8) {
	case 0:
		return "post an error", w.PostError(&cq.ErrorEntry{Context: e.Context,
			Err: cq.Errno(rnd.Int32()), ErrData: make([]byte, rnd.IntN(cq.ErrDataMaxBytes+1))})
	case 1:
		batch := make([]cq.Entry, 1+rnd.IntN(300))
		for i := range batch {
			batch[i] = anyEntry(rnd)
		}
		_, err = w.PostBatch(batch)
		return "post a batch", err
	case 2:
		n := 1 + rnd.IntN(4)
		if err = w.Credits().Add(n); err != nil {
			return "credit", err
		}
		for range n {
			if err == nil {
				err = w.Credits().Post(&e)
			}
		}
		w.Credits().Return(w.Credits().Len())
		return "post with a credit", err
	case 3:
		a, b, err := w.Reserve(1 + rnd.IntN(300))
		if err == nil {
			if n := len(a) + len(b); n > w.Stats().Size {
				err = fmt.Errorf("%d slots of %d", n, w.Stats().Size)
			}
			for i := range a {
				a[i] = e
			}
			for i := range b {
				b[i] = e
			}
		}
		if err == nil {
			err = w.Commit(len(a) + len(b))
		}
		return "reserve and commit", err
	case 4:
		if n := w.Free(); n < 0 || n > w.Stats().Size {
			return "free", fmt.Errorf("%d of %d are free", n, w.Stats().Size)
		}
		return "free", nil
	}
	return "post", w.Post(&e)
}

// writeSomehow writes what looks like anything.
func writeSomehow(rnd *rand.Rand, w *cq.EventWriter) (what string, err error) {
	text := make([]byte, rnd.IntN(eventData))
	if rnd.IntN(4) == 0 {
		_, err = w.WriteErr(&cq.EventError{Err: cq.Errno(rnd.Int32()), ErrData: text})
		return "write an error", err
	}
	_, err = w.Write(&cq.Event{Event: cq.EventKind(rnd.Uint32() >> rnd.IntN(32)),
		Context: rnd.Uint64N(4), Payload: text})
	return "write an event", err
}

// attackReader has queues whose memory is scribbled over while writers attach and post.
func attackReader(c *child) error {
	l, err := wire.Listen("unix", c.path(fmt.Sprintf(attackerSocket, c.Index)))
	if err != nil {
		return err
	}
	return c.attackAs(func() (*guest, error) {
		q, drain, err := c.s.writes.lure(c)
		if err != nil {
			return nil, err
		}
		accept := func() { c.acceptOne(l, q) }
		return &guest{play: accept, drain: drain, raids: 1 + c.rnd.IntN(8), begin: func() {
			if c.rnd.IntN(2) == 0 { // somebody is to be there when it begins
				accept()
			}
		}, leave: func() error {
			if q.Close() != nil { // it can be too broken for that
				return errOver
			}
			return nil
		}}, nil
	})
}

// lureCompletions makes a queue for writers of a victim, and what reads a little of it.
func lureCompletions(c *child) (accepter, func(), error) {
	o := cq.Options{Size: 64 << c.rnd.IntN(6), MaxLanes: 8, Trust: c.s.trust, Spin: -1,
		Wait:    []cq.WaitObject{cq.WaitUnspec, cq.WaitFD}[c.rnd.IntN(2)],
		Overrun: []cq.Overrun{0, cq.OverrunQueue}[c.rnd.IntN(2)]}
	if o.Trust == cq.CrossUser {
		o.Allow = everybody()
	}
	q, err := cq.Create(cq.Unnamed("attacker"), o)
	rnd, dst := c.split(), make([]cq.Entry, 64)
	return q, func() {
		if rnd.IntN(2) == 0 {
			_, _ = cq.ReadContext(context.Background(), q, dst,
				cq.ReadOptions{Timeout: time.Millisecond})
		} else {
			_, _ = cq.Read(q, dst)
			time.Sleep(50 * time.Microsecond)
		}
		_ = q.ReadErr(&cq.ErrorEntry{})
	}, err
}

func lureEvents(c *child) (accepter, func(), error) {
	q, err := cq.CreateEvents(cq.Unnamed("attacker"), c.eventOptions(16<<c.rnd.IntN(6)))
	return q, func() {
		_, _ = q.ReadContext(context.Background(), &cq.Event{Payload: make([]byte, 0, 1<<10)},
			cq.ReadOptions{Timeout: time.Millisecond})
		_, _ = q.ReadErr(&cq.EventError{}, 0)
	}, err
}

// accepter is a queue of either kind.
type accepter interface {
	Accept(context.Context, *net.UnixConn) error
	Close() error
}

func (c *child) acceptOne(l *net.UnixListener, q accepter) {
	_ = l.SetDeadline(time.Now().Add(2 * time.Millisecond))
	conn, err := l.AcceptUnix()
	if err != nil {
		return
	}
	ctx, cancel := limited(20 * time.Millisecond)
	if q.Accept(ctx, conn) == nil {
		add(&c.did.Attaches, 1)
	}
	cancel()
	_ = conn.Close()
}
