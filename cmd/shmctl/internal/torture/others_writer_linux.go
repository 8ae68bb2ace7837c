package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// othersLink is a writer with one reader after the other.
type othersLink interface {
	// generation is that of the reader that it is with.
	generation() uint64
	ReaderGone() <-chan struct{}
	BindEvents(cq.EventSink) error
	// Renew goes on with the successor of a reader that is gone; see [cq.Writer.Follow].
	Renew(context.Context) error
	Close() error
	// some posts a little, in one of the ways that there are.
	some(p *othersPoster) error
}

// link is what such a writer is made of.
type link[W interface {
	ReaderGone() <-chan struct{}
	BindEvents(cq.EventSink) error
	Follow(context.Context, *net.UnixConn) (W, error)
	Close() error
}] struct {
	c    *child
	b    *between
	w    W
	with uint64 // generation of the reader
}

// meet tries until somebody is there.
func (l *link[W]) meet(ctx context.Context, with func(*net.UnixConn) (W, error)) error {
	for {
		conn, generation, err := l.c.othersDial(ctx, l.b)
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

// othersPoster is a writer in one session: with one reader after the other.
type othersPoster struct {
	*child
	b      *between
	link   othersLink
	deaths *cq.EventQueue
	name   uint64
	s      othersSession
	next   uint64 // number of the next entry
	mu     sync.Mutex
	told   map[uint64]bool // readers whose death the event queue told
}

// othersOptions are those of writers.
func othersOptions() cq.WriterOptions {
	return cq.WriterOptions{Trust: cq.TrustOthers,
		Allow: &shm.AllowList{UIDs: []int{othersReaderUID}}}
}

// othersDial connects to the reader that there is, and says which one that is.
func (c *child) othersDial(ctx context.Context, b *between) (*net.UnixConn, uint64, error) {
	generation := c.ledger.region(b.reader)[othersHolder].Load()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.othersSocket(b, generation))
	if err != nil {
		return nil, 0, err
	}
	return conn.(*net.UnixConn), generation, nil
}

// othersWrite follows readers and posts, session after session, until it is told to stop.
func (c *child) othersWrite(b *between,
	follow func(*child, context.Context) (othersLink, error)) error {
	for c.ledger.phase() == phaseRun {
		if c.words[othersStill].Load() != 0 { // who attaches wakes the reader
			nap(time.Millisecond)
			continue
		}
		n := c.words[othersSessions+c.Index].Add(1)
		if n >= othersMost {
			return fmt.Errorf("%d sessions are more than the ledger has room for", n)
		}
		if err := c.othersSession(b, n, follow); err != nil {
			return err
		}
	}
	return nil
}

func (c *child) othersSession(b *between, n uint64,
	follow func(*child, context.Context) (othersLink, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	link, err := follow(c, ctx)
	if err != nil {
		return fmt.Errorf("nobody to follow: %w", err)
	}
	p := &othersPoster{child: c, b: b, link: link, name: othersName(c.Index, n), next: 1,
		s: othersSessionOf(c.words, c.Index, n), told: map[uint64]bool{}}
	if p.deaths, err = cq.CreateAnonymousEvents("deaths", cq.EventOptions{}); err != nil {
		return errors.Join(err, link.Close())
	}
	mourning, stop := context.WithCancel(context.Background())
	mourned := make(chan error, 1)
	go func() { mourned <- p.mourn(mourning) }()
	if err = link.BindEvents(p.deaths); err == nil {
		p.at(link.generation())
		if err = p.post(); err == nil {
			err = p.untilSeen()
		}
	}
	c.words[othersWith+c.Index].Store(0)
	c.words[othersFormer+c.Index].Store(0)
	if errors.Is(err, errGaveUp) {
		err = nil
	}
	stop()
	return errors.Join(err, <-mourned, link.Close(), p.deaths.Close())
}

// mourn passes on what the event queue says of readers that died, at once and not only when the
// next one is there.
func (p *othersPoster) mourn(ctx context.Context) error {
	ev := cq.Event{Payload: make([]byte, 0, 128)}
	for {
		if _, err := p.deaths.ReadContext(ctx, &ev); ctx.Err() != nil {
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
func (p *othersPoster) knows(generation uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told[generation]
}

// at notes with what reader the lane is now.
func (p *othersPoster) at(generation uint64) {
	p.s.home.Store(generation)
	p.words[othersWith+p.Index].Store(generation)
}

// post posts for a while in all ways there are, and through all readers that there are.
func (p *othersPoster) post() error {
	for range 1 + p.rnd.IntN(3000) {
		for p.words[othersStill].Load() != 0 && p.ledger.phase() == phaseRun {
			if err := p.untilSeen(); err != nil {
				return err
			}
			nap(time.Millisecond)
		}
		if p.ledger.phase() != phaseRun {
			return nil
		}
		var err error
		switch k := p.rnd.IntN(100); {
		case k < 94:
			err = p.link.some(p)
		case k < 98:
			nap(time.Duration(p.rnd.IntN(3000)) * time.Microsecond)
		default:
			err = p.untilSeen()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *othersPoster) published(n int) {
	p.next += uint64(n)
	p.s.published.Store(p.next - 1)
}

// again deals with what kept it from posting: it waits for room, or for the next reader.
func (p *othersPoster) again(err error, since time.Duration) error {
	switch {
	case errors.Is(err, cq.ErrPeerGone):
		return p.renew()
	case !errors.Is(err, cq.ErrFull):
		return err
	case lifetime()-since > patience:
		p.tell(kindHung, "no room for %v, with %d of %d seen", patience, p.s.seen.Load(), p.next-1)
		return errGaveUp
	}
	select { // nobody posts while there is no room
	case <-p.link.ReaderGone():
		return p.renew()
	case <-time.After(200 * time.Microsecond):
		return nil
	}
}

// renew goes on with the next reader. Its own event queue must know why.
func (p *othersPoster) renew() error {
	former := p.s.home.Load()
	p.words[othersFormer+p.Index].Store(former)
	p.words[othersWith+p.Index].Store(0)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.link.Renew(ctx); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			p.tell(kindHung, "no reader to follow for %v: %v", patience, err)
			return errGaveUp
		}
		return fmt.Errorf("renew: %w", err)
	}
	p.at(p.link.generation())
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

// untilSeen waits until a reader has seen everything: no later post helps a lost wake.
func (p *othersPoster) untilSeen() error {
	for since := lifetime(); p.s.seen.Load() < p.next-1; {
		if lifetime()-since > patience {
			p.tell(kindHung, "%d of %d seen, and no more for %v", p.s.seen.Load(), p.next-1, patience)
			return errGaveUp
		}
		select {
		case <-p.link.ReaderGone():
			if err := p.renew(); err != nil {
				return err
			}
		case <-time.After(100 * time.Microsecond):
		}
	}
	return nil
}
