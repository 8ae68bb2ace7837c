package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/shmring/shmring/cq"
)

// queueLink follows readers of queues.
type queueLink struct{ link[*cq.Writer] }

// othersFollow attaches to whoever reads.
func (c *child) othersFollow(ctx context.Context) (othersLink, error) {
	l := &queueLink{link[*cq.Writer]{c: c, b: &queuesBetween}}
	err := l.meet(ctx, func(conn *net.UnixConn) (*cq.Writer, error) {
		return cq.AttachConn(ctx, conn, othersOptions())
	})
	return l, err
}

func (l *queueLink) some(p *othersPoster) error {
	switch k := p.rnd.IntN(94); {
	case k < 60:
		return l.batch(p, 1)
	case k < 80:
		return l.batch(p, 1+p.rnd.IntN(maxBatch))
	case k < 90:
		return l.reserved(p, 1+p.rnd.IntN(maxBatch))
	default:
		return l.credited(p, 1+p.rnd.IntN(4))
	}
}

func othersEntry(name, number uint64) cq.Entry {
	return cq.Entry{Context: number, Flags: cq.FlagSend | cq.FlagMsg, Data: name,
		Tag: mix(name, number)}
}

// batch posts n entries.
func (l *queueLink) batch(p *othersPoster, n int) error {
	var buf [maxBatch]cq.Entry
	for i := range n {
		buf[i] = othersEntry(p.name, p.next+uint64(i))
	}
	rest := buf[:n]
	p.s.intent.Store(p.next + uint64(n) - 1)
	for since := lifetime(); len(rest) > 0; {
		k, err := 1, error(nil)
		if n == 1 {
			err = l.w.Post(&rest[0])
		} else {
			k, err = l.w.PostBatch(rest)
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
func (l *queueLink) reserved(p *othersPoster, n int) error {
	for since := lifetime(); ; {
		w := l.w
		a, b, err := w.Reserve(n)
		if err == nil {
			number := p.next
			for _, span := range [][]cq.Entry{a, b} {
				for i := range span {
					span[i] = othersEntry(p.name, number)
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
func (l *queueLink) credited(p *othersPoster, n int) error {
	if err := l.w.Credit(n); err != nil {
		return p.again(err, lifetime())
	}
	for range n {
		e := othersEntry(p.name, p.next)
		p.s.intent.Store(p.next)
		for {
			err := l.w.PostCredited(&e)
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
