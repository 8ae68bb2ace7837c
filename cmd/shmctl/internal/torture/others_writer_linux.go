package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

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
	for _, is := range []error{cq.ErrPeerGone, cq.ErrClosed, cq.ErrLanes, cq.ErrTimedOut,
		shm.ErrStale, cq.ErrBusy, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
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
		return cq.AttachConn(ctx, conn, othersOptions())
	})
}

// othersFollowEvents attaches to whoever reads events.
func (c *child) othersFollowEvents(ctx context.Context) (lane, error) {
	l := &eventLane{link: link[*cq.EventWriter]{c: c}}
	return l, l.meet(ctx, func(conn *net.UnixConn) (*cq.EventWriter, error) {
		return cq.AttachEventsConn(ctx, conn, othersOptions())
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
		deaths, err := cq.CreateAnonymousEvents("deaths", cq.EventOptions{})
		if err != nil {
			return errors.Join(err, l.Close())
		}
		p := c.poster(l, name, s)
		mourning, stop := context.WithCancel(context.Background())
		mourned := make(chan error, 1)
		go func() { mourned <- p.mourn(mourning, deaths) }()
		if err = l.BindEvents(deaths); err == nil {
			p.at(l.generation())
			err = p.session()
		}
		shared := p.b.shared(c.ledger)
		shared[othersWith+c.Index].Store(0)
		shared[othersFormer+c.Index].Store(0)
		stop()
		return errors.Join(err, <-mourned, l.Close(), deaths.Close())
	})
}

// mourn passes on what the event queue says of readers that died, at once and not only when the
// next one is there.
func (p *poster) mourn(ctx context.Context, deaths *cq.EventQueue) error {
	ev := cq.Event{Payload: make([]byte, 0, 128)}
	for {
		if _, err := deaths.ReadContext(ctx, &ev, cq.ReadOptions{}); ctx.Err() != nil {
			return nil
		} else if err != nil {
			return fmt.Errorf("read deaths: %w", err)
		}
		if peer, err := cq.ParsePeerEntry(ev.Payload); err == nil && ev.Event == cq.EventPeerDeath {
			p.notice(p.b.noticeReader, peer)
			p.mu.Lock()
			p.told[peer.Generation] = true
			p.mu.Unlock()
		}
	}
}

// knows tells whether the event queue told the death of a reader.
func (p *poster) knows(generation uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told[generation]
}

// at notes with what reader the lane is now.
func (p *poster) at(generation uint64) {
	p.s.home.Store(generation)
	p.b.shared(p.ledger)[othersWith+p.Index].Store(generation)
}

// renew goes on with the next reader. Its own event queue must know why.
func (p *poster) renew() error {
	former := p.s.home.Load()
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
	left := leftWord(p.ledger.region(p.b.reader), former)
	for since := lifetime(); ; nap(time.Millisecond) {
		if p.knows(former) || left.Load() == former {
			return nil // else it was not a death, or need not have been one
		}
		if lifetime()-since > noticeLatest {
			p.tell(kindUnnoticed, "no event tells of reader %d, which died", former)
			return nil
		}
	}
}
