package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// othersOpen makes a queue, and says how it is read.
type othersOpen func(c *child, at int) (*reading, othersHeld, error)

// othersHeld is a queue or an event queue.
type othersHeld interface {
	FID() cq.FID
	BindEvents(cq.EventSink) error
	Serve(*net.UnixListener, func(error)) error
	Detach() error
	Close() error
}

// othersSocket is where the reader of a generation listens.
func (c *child) othersSocket(generation uint64) string {
	return fmt.Sprintf("%s/s%d", c.Share[c.role.between.share], generation)
}

// othersRead reads at the place whenever nobody else does, until everything is read.
func (c *child) othersRead(open othersOpen) error {
	lock, err := os.OpenFile(c.Share[c.role.between.share]+"/lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	// Where it cannot enter: bells have no name then, as nothing that is between users has.
	if err := os.Setenv(shm.EnvDir, c.Base+"/"+queuesDir); err != nil {
		return err
	}
	var at *atPlace
	return c.hold(func(bool) (held, error) {
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return nil, syscall.EBUSY
		}
		if c.words[heldEnded].Load() != 0 {
			return nil, errors.Join(cq.ErrClosed, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
		}
		if at, err = c.takePlace(lock, open); err != nil { // it is not that somebody has it
			return nil, fmt.Errorf("at the place: %v", err)
		}
		return at, nil
	}, func(running context.Context) (done bool, err error) { return at.use(running) })
}

// othersListen listens for those who follow to a generation.
func (c *child) othersListen(generation uint64) (*net.UnixListener, error) {
	killed, err := filepath.Glob(c.Share[c.role.between.share] + "/s*")
	if err != nil {
		return nil, err
	}
	for _, path := range killed {
		_ = os.Remove(path)
	}
	path := c.othersSocket(generation)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// atPlace is a reader's time with the place.
type atPlace struct {
	*reading
	q      othersHeld
	lock   *os.File
	l      *net.UnixListener
	deaths func() error // ends what tells of them
	served chan error
}

// takePlace makes a queue at the place, which this process has.
func (c *child) takePlace(lock *os.File, open othersOpen) (*atPlace, error) {
	b := c.role.between
	way := c.rnd.IntN(othersWays)
	step, _, _ := strings.Cut(c.Step, "-")
	if toward := b.toward[step]; toward != nil {
		way = toward[c.rnd.IntN(len(toward))]
	}
	r, q, err := open(c, way)
	if err != nil {
		return nil, err
	}
	generation := q.FID().Generation
	r.way, r.mine, r.plays = b.ways[way], generation, &c.words[othersPlayed+way]
	a := &atPlace{reading: r, q: q, lock: lock, served: make(chan error, 1)}
	if a.l, err = c.othersListen(generation); err != nil {
		return nil, err
	}
	deaths, end, err := c.followDeaths(func(p cq.PeerEntry) { c.notice(b.noticeWriter, p) })
	if err == nil {
		a.deaths, err = end, q.BindEvents(deaths)
	}
	c.words[othersBy].Store(uint64(way))
	return a, err
}

// use lets writers follow, and reads.
func (a *atPlace) use(running context.Context) (done bool, err error) {
	if former := a.words[othersHolder].Swap(a.mine); a.mine <= former {
		a.tell(kindBroken, "generation %d comes after %d", a.mine, former)
	}
	has := &a.words[othersHas+a.Index]
	has.Store(a.mine)
	go func() { a.served <- a.q.Serve(a.l, nil) }() // peers that are killed half way are no news
	done, err = a.drain(running)
	a.unbound()
	has.Store(0)
	return done, err
}

// Detach leaves the queue to a successor.
func (a *atPlace) Detach() error {
	leftWord(a.words, a.mine).Store(a.mine)
	return a.leave(a.q.Detach())
}

func (a *atPlace) Close() error { return a.leave(a.q.Close()) }

// leave gives the place up; err is of the end of the queue.
func (a *atPlace) leave(err error) error {
	_ = a.l.Close()
	if e := <-a.served; !errors.Is(e, cq.ErrClosed) && !errors.Is(e, net.ErrClosed) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, a.deaths(), unix.Flock(int(a.lock.Fd()), unix.LOCK_UN))
}

// othersQueue makes a queue.
func (c *child) othersQueue(at int) (*reading, othersHeld, error) {
	o := cq.Options{Size: othersSize, Trust: cq.CrossUser, MaxLanes: 16, Spin: -1,
		Allow: &shm.AllowList{UIDs: []int{othersWriterUID}}, Shared: at == othersShared}
	if at == othersFD {
		o.Wait = cq.WaitFD
	}
	q, err := cq.Create(cq.Unnamed("others"), o)
	j := c.checks(c.role.between.writer, heldAgain)
	return &reading{checker: j, taker: queueTaker{j}, of: []cq.Waitable{q}}, q, err
}

// othersEvents makes an event queue.
func (c *child) othersEvents(at int) (*reading, othersHeld, error) {
	j := c.checks(c.role.between.writer, heldAgain)
	events := newEventTaker(j)
	o := cq.EventOptions{Size: eventSize, Trust: cq.CrossUser, MaxLanes: 16, Spin: -1,
		Allow: &shm.AllowList{UIDs: []int{othersWriterUID}}, DataMaxBytes: eventPayload,
		Shared: at == othersShared}
	switch at {
	case othersFD:
		o.Wait = cq.WaitFD
	case othersLast:
		events.ended, o.Handler = make(chan error, 1), events.handle
	}
	e, err := cq.CreateEvents(cq.Unnamed("others"), o)
	return &reading{checker: j, taker: events, of: []cq.Waitable{e}}, e, err
}

// link is a writer, with one reader after the other where they are of another user.
type link[W interface {
	ReaderGone() <-chan struct{}
	BindEvents(cq.EventSink) error
	Follow(context.Context, *net.UnixConn) (W, error)
	Close() error
}] struct {
	c    *child
	w    W
	with uint64 // generation of the reader
}

// meet tries until somebody is there.
func (l *link[W]) meet(ctx context.Context, with func(*net.UnixConn) (W, error)) error {
	for {
		conn, generation, err := l.c.othersDial(ctx)
		if err == nil {
			var w W
			w, err = with(conn)
			_ = conn.Close() // the writer has its own
			if err == nil {
				l.w, l.with = w, generation
				return nil
			}
			if !passing(err) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the last try: %w", ctx.Err(), err)
		case <-time.After(time.Millisecond):
		}
	}
}

// passing tells errors of a reader that is gone or going. One that is told to be gone and then to
// live is not among them.
func passing(err error) bool {
	var lives *shm.BusyError
	if errors.As(err, &lives) {
		return false
	}
	return isAny(err, cq.ErrPeerGone, cq.ErrClosed, cq.ErrLanes, cq.ErrTimedOut, shm.ErrStale,
		cq.ErrBusy, syscall.EPIPE, syscall.ECONNRESET)
}

func (l *link[W]) generation() uint64               { return l.with }
func (l *link[W]) ReaderGone() <-chan struct{}      { return l.w.ReaderGone() }
func (l *link[W]) BindEvents(to cq.EventSink) error { return l.w.BindEvents(to) }
func (l *link[W]) Close() error                     { return l.w.Close() }

func (l *link[W]) Renew(ctx context.Context) error {
	return l.meet(ctx, func(conn *net.UnixConn) (W, error) { return l.w.Follow(ctx, conn) })
}

// othersOptions are those of writers.
func othersOptions() cq.WriterOptions {
	return cq.WriterOptions{Trust: cq.CrossUser,
		Allow: &shm.AllowList{UIDs: []int{othersReaderUID}}}
}

// othersDial connects to the reader that there is, and says which one that is.
func (c *child) othersDial(ctx context.Context) (*net.UnixConn, uint64, error) {
	generation := c.ledger.region(c.role.between.reader)[othersHolder].Load()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.othersSocket(generation))
	if err != nil {
		return nil, 0, err
	}
	return conn.(*net.UnixConn), generation, nil
}

// othersFollow attaches to whoever reads.
func (c *child) othersFollow(ctx context.Context) (lane, error) {
	l := &queueLane{link[*cq.Writer]{c: c}}
	return l, l.meet(ctx, func(conn *net.UnixConn) (*cq.Writer, error) {
		return cq.Attach(ctx, cq.Over(conn), othersOptions())
	})
}

// othersFollowEvents attaches to whoever reads events.
func (c *child) othersFollowEvents(ctx context.Context) (lane, error) {
	l := &eventLane{link: link[*cq.EventWriter]{c: c}}
	return l, l.meet(ctx, func(conn *net.UnixConn) (*cq.EventWriter, error) {
		return cq.AttachEvents(ctx, cq.Over(conn), othersOptions())
	})
}

// othersWrite follows readers and posts, session after session, until it is told to stop.
func (c *child) othersWrite(follow func(*child, context.Context) (lane, error)) error {
	return c.sessions(func(name uint64, s session) error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		l, err := follow(c, ctx)
		if err != nil {
			return fmt.Errorf("nobody to follow: %w", err)
		}
		p := c.poster(l, name, s)
		// At once, and not only when the next one is there.
		deaths, end, err := c.followDeaths(func(d cq.PeerEntry) { c.notice(p.b.noticeReader, d) })
		if err != nil {
			return errors.Join(err, l.Close())
		}
		if err = l.BindEvents(deaths); err == nil {
			p.at(l.generation())
			err = p.session()
		}
		c.unbound()
		shared := p.b.shared(c.ledger)
		shared[othersWith+c.Index].Store(0)
		shared[othersFormer+c.Index].Store(0)
		return errors.Join(err, l.Close(), end())
	})
}

// at notes with what reader the lane is now.
func (p *poster) at(generation uint64) {
	p.s.reader.Store(generation)
	p.b.shared(p.ledger)[othersWith+p.Index].Store(generation)
}

// renew goes on with the next reader.
func (p *poster) renew() error {
	former := p.s.reader.Load()
	shared := p.b.shared(p.ledger)
	shared[othersFormer+p.Index].Store(former)
	shared[othersWith+p.Index].Store(0)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.lane.Renew(ctx); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			p.tell(kindHung, "no reader to follow for %v: %v", patience, err)
			return errGaveUp
		}
		return fmt.Errorf("renew: %w", err)
	}
	p.at(p.lane.generation())
	return nil
}
