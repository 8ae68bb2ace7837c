package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// othersPoster is a writer in one session: with one reader after the other.
type othersPoster struct {
	*child
	f      *cq.Follower
	deaths *cq.EventQueue
	name   uint64
	s      othersSession
	next   uint64 // number of the next entry
	mu     sync.Mutex
	told   map[uint64]bool // readers whose death the event queue told
}

// othersWrite follows readers and posts, session after session, until it is told to stop.
func (c *child) othersWrite() error {
	for c.ledger.phase() == phaseRun {
		n := c.words[othersSessions+c.Index].Add(1)
		if n >= othersMost {
			return fmt.Errorf("%d sessions are more than the ledger has room for", n)
		}
		if err := c.othersSession(n); err != nil {
			return err
		}
	}
	return nil
}

func (c *child) othersDial(ctx context.Context) (*net.UnixConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.Share[othersPlace]+"/s")
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

func (c *child) othersSession(n uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	f, err := cq.Follow(ctx, c.othersDial, cq.WriterOptions{Trust: cq.TrustOthers,
		Allow: &shm.AllowList{UIDs: []int{othersReaderUID}}})
	if err != nil {
		return fmt.Errorf("nobody to follow: %w", err)
	}
	p := &othersPoster{child: c, f: f, name: othersName(c.Index, n), next: 1,
		s: othersSessionOf(c.words, c.Index, n), told: map[uint64]bool{}}
	if p.deaths, err = cq.CreateAnonymousEvents("deaths", cq.EventOptions{}); err != nil {
		return errors.Join(err, f.Close())
	}
	mourning, stop := context.WithCancel(context.Background())
	mourned := make(chan error, 1)
	go func() { mourned <- p.mourn(mourning) }()
	if err = f.Writer().BindEvents(p.deaths); err == nil {
		p.at(f.Writer().Generation())
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
	return errors.Join(err, <-mourned, f.Close(), p.deaths.Close())
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
			p.notice(noticeOthersReader, peer)
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
		if p.ledger.phase() != phaseRun {
			return nil
		}
		var err error
		switch k := p.rnd.IntN(100); {
		case k < 60:
			err = p.batch(1)
		case k < 80:
			err = p.batch(1 + p.rnd.IntN(maxBatch))
		case k < 90:
			err = p.reserved(1 + p.rnd.IntN(maxBatch))
		case k < 94:
			err = p.credited(1 + p.rnd.IntN(4))
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

func (p *othersPoster) entry(number uint64) cq.Entry {
	return cq.Entry{Context: number, Flags: cq.FlagSend | cq.FlagMsg, Data: p.name,
		Tag: mix(p.name, number)}
}

func (p *othersPoster) published(n int) {
	p.next += uint64(n)
	p.s.published.Store(p.next - 1)
}

// again deals with what kept it from posting: it waits for room, or for the next reader.
func (p *othersPoster) again(err error, since time.Time) error {
	switch {
	case errors.Is(err, cq.ErrPeerGone):
		return p.renew()
	case !errors.Is(err, cq.ErrFull):
		return err
	case time.Since(since) > patience:
		p.tell(kindHung, "no room for %v, with %d of %d seen", patience, p.s.seen.Load(), p.next-1)
		return errGaveUp
	}
	select { // nobody posts while there is no room
	case <-p.f.Writer().ReaderGone():
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
	if err := p.f.Renew(ctx); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			p.tell(kindHung, "no reader to follow for %v: %v", patience, err)
			return errGaveUp
		}
		return fmt.Errorf("renew: %w", err)
	}
	p.at(p.f.Writer().Generation())
	left := leftWord(p.ledger.region("others-reader"), former)
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

// batch posts n entries.
func (p *othersPoster) batch(n int) error {
	var buf [maxBatch]cq.Entry
	for i := range n {
		buf[i] = p.entry(p.next + uint64(i))
	}
	rest := buf[:n]
	p.s.intent.Store(p.next + uint64(n) - 1)
	for since := time.Now(); len(rest) > 0; {
		k, err := 1, error(nil)
		if n == 1 {
			err = p.f.Writer().Post(&rest[0])
		} else {
			k, err = p.f.Writer().PostBatch(rest)
		}
		if err == nil {
			rest = rest[k:]
			p.published(k)
			continue
		}
		if err = p.again(err, since); err != nil {
			return err
		}
	}
	return nil
}

// reserved fills slots in place, and publishes some of them, perhaps after the reader is gone.
func (p *othersPoster) reserved(n int) error {
	for since := time.Now(); ; {
		w := p.f.Writer()
		a, b, err := w.Reserve(n)
		if err == nil {
			number := p.next
			for _, span := range [][]cq.Entry{a, b} {
				for i := range span {
					span[i] = p.entry(number)
					number++
				}
			}
			k := p.rnd.IntN(len(a) + len(b) + 1)
			p.s.intent.Store(max(p.s.intent.Load(), p.next+uint64(k)-1))
			if p.rnd.IntN(20) == 0 {
				nap(time.Duration(p.rnd.IntN(3000)) * time.Microsecond)
			}
			if err := w.Commit(k); err != nil {
				return fmt.Errorf("commit: %w", err)
			}
			p.published(k)
			return nil
		}
		if err = p.again(err, since); err != nil {
			return err
		}
	}
}

// credited posts with credits, which go along to the next reader.
func (p *othersPoster) credited(n int) error {
	if err := p.f.Writer().Credit(n); err != nil {
		return p.again(err, time.Now())
	}
	for range n {
		e := p.entry(p.next)
		p.s.intent.Store(p.next)
		for {
			err := p.f.Writer().PostCredited(&e)
			if err == nil {
				break
			}
			if !errors.Is(err, cq.ErrPeerGone) {
				return fmt.Errorf("post with credit: %w", err)
			}
			if err = p.renew(); err != nil {
				return err
			}
		}
		p.published(1)
	}
	return nil
}

// untilSeen waits until a reader has seen everything: no later post helps a lost wake.
func (p *othersPoster) untilSeen() error {
	for since := time.Now(); p.s.seen.Load() < p.next-1; {
		if time.Since(since) > patience {
			p.tell(kindHung, "%d of %d seen, and no more for %v", p.s.seen.Load(), p.next-1, patience)
			return errGaveUp
		}
		select {
		case <-p.f.Writer().ReaderGone():
			if err := p.renew(); err != nil {
				return err
			}
		case <-time.After(100 * time.Microsecond):
		}
	}
	return nil
}
