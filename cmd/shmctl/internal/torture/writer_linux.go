package torture

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shmring/shmring/cq"
)

const maxBatch = 32

// poster is a writer in one session.
type poster struct {
	*child
	w    *cq.Writer
	name uint64
	s    session
	next uint64 // number of the next entry
	buf  [maxBatch]cq.Entry
}

// write attaches and posts, session after session, until it is told to stop.
func (c *child) write() (err error) {
	eq, end, err := c.mourning()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	return c.sessions(func(name uint64, s session) error { return c.attachAndPost(name, s, eq) })
}

// sessions has one session of this process after the other until it is told to stop.
func (c *child) sessions(one func(name uint64, s session) error) error {
	ss := c.ledger.sessions(c.role.name)
	for c.ledger.phase() == phaseRun {
		n := ss.count(c.Index).Add(1)
		if n >= maxSessions {
			return fmt.Errorf("%d sessions are more than the ledger has room for", n)
		}
		if err := one(sessionName(c.Index, n), ss.at(c.Index, n)); err != nil {
			return err
		}
	}
	return nil
}

// hush waits as long as nobody is to post.
func (c *child) hush() {
	for c.ledger.word(wordHush).Load() != 0 && c.ledger.phase() == phaseRun {
		nap(time.Millisecond)
	}
}

// attachAndPost is one session. In some nobody tells it of its reader's death.
func (c *child) attachAndPost(name uint64, s session, eq *cq.EventQueue) error {
	c.hush()
	w, err := c.attach(queueName)
	if w == nil {
		return err
	}
	p := &poster{child: c, w: w, name: name, s: s, next: 1}
	owner, lane := &c.words[writerLaneOwner+w.Lane()], &c.words[writerLane+c.Index]
	owner.Store(p.name)
	lane.Store(uint64(w.Lane()) + 1)
	if c.rnd.IntN(4) > 0 {
		if err = w.BindEvents(eq); err == nil {
			c.bound()
		}
	}
	if err == nil {
		err = p.post()
	}
	c.unbound()
	lane.Store(0)
	return errors.Join(err, w.Close())
}

// attach becomes a writer of a queue; nil without an error is to be tried again.
func (c *child) attach(queue string) (*cq.Writer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w, err := cq.Attach(ctx, c.dir, queue, cq.WriterOptions{Wait: true})
	return w, c.attached(err)
}

// attached judges the error of an attachment.
func (c *child) attached(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		c.tell(kindHung, "no queue to attach to for %v", patience)
	case errors.Is(err, cq.ErrLanes): // those of the dead can be had; but all may have owners
		nap(time.Millisecond)
	case err != nil:
		return fmt.Errorf("attach: %w", err)
	}
	return nil
}

// post posts for a while in all ways there are.
func (p *poster) post() error {
	for range 1 + p.rnd.IntN(2000) {
		p.hush()
		if p.ledger.phase() != phaseRun {
			return nil
		}
		var err error
		switch k := p.rnd.IntN(100); {
		case k < 50:
			err = p.one()
		case k < 75:
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

// entry makes the entry of a number.
func (p *poster) entry(number uint64) cq.Entry {
	e := cq.Entry{Context: number, Flags: cq.FlagSend | cq.FlagMsg, Data: p.name,
		Tag: mix(p.name, number), Len: number & 0xffff}
	if number%7 == 0 {
		e.Meta = cq.MetaSolicited
	}
	return e
}

// published notes that n more entries are.
func (p *poster) published(n int) {
	p.next += uint64(n)
	p.s.published.Store(p.next - 1)
}

// full waits a moment for room; anything but a full lane is an error.
func (p *poster) full(err error, since time.Duration) error {
	return p.fullLane(err, since, p.s, p.next-1)
}

// fullLane is full for a session of which so many are published.
func (c *child) fullLane(err error, since time.Duration, s session, published uint64) error {
	if !errors.Is(err, cq.ErrFull) {
		return err
	}
	if lifetime()-since > patience {
		c.tell(kindHung, "no room for %v, with %d of %d seen", patience, s.seen.Load(), published)
		return errGaveUp
	}
	nap(200 * time.Microsecond)
	return nil
}

func (p *poster) one() error {
	e := p.entry(p.next)
	p.s.intent.Store(p.next)
	for since := lifetime(); ; {
		err := p.w.Post(&e)
		if err == nil {
			p.published(1)
			return nil
		}
		if err = p.full(err, since); err != nil {
			return err
		}
	}
}

func (p *poster) batch(n int) error {
	for i := range n {
		p.buf[i] = p.entry(p.next + uint64(i))
	}
	rest := p.buf[:n]
	p.s.intent.Store(p.next + uint64(n) - 1)
	for since := lifetime(); len(rest) > 0; {
		k, err := p.w.PostBatch(rest)
		if rest = rest[k:]; k > 0 {
			p.published(k)
			continue
		}
		if err = p.full(err, since); err != nil {
			return err
		}
	}
	return nil
}

// reserved fills slots in place, and says only then that it is going to commit some of them.
func (p *poster) reserved(n int) error {
	for since := lifetime(); ; {
		a, b, err := p.w.Reserve(n)
		if err == nil {
			number := p.next
			for _, span := range [][]cq.Entry{a, b} {
				for i := range span {
					span[i] = p.entry(number)
					number++
				}
			}
			k := p.rnd.IntN(len(a) + len(b) + 1) // what is left is never published like this
			p.s.intent.Store(max(p.s.intent.Load(), p.next+uint64(k)-1))
			if p.rnd.IntN(50) == 0 { // so that kills find it with slots in its hands
				nap(time.Duration(p.rnd.IntN(3000)) * time.Microsecond)
			}
			if err := p.w.Commit(k); err != nil {
				return err
			}
			p.published(k)
			return nil
		}
		if err = p.full(err, since); err != nil {
			return err
		}
	}
}

func (p *poster) credited(n int) error {
	if err := p.w.Credit(n); err != nil {
		return p.full(err, lifetime())
	}
	for range n {
		e := p.entry(p.next)
		p.s.intent.Store(p.next)
		if err := p.w.PostCredited(&e); err != nil {
			return fmt.Errorf("post with credit: %w", err)
		}
		p.published(1)
	}
	return nil
}

// untilSeen waits until the reader has seen everything.
func (p *poster) untilSeen() error {
	if !p.child.untilSeen(p.s, p.next-1) {
		return errGaveUp
	}
	return nil
}

// errGaveUp ends a process that told what it waited for in vain.
var errGaveUp = errors.New("gave up")
