package torture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// othersRead reads at the place whenever nobody else does, until everything is read.
func (c *child) othersRead() error {
	lock, err := os.OpenFile(c.Share[othersPlace]+"/lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	for c.words[othersEnded].Load() == 0 {
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			nap(500 * time.Microsecond)
			continue
		}
		if c.words[othersEnded].Load() == 0 {
			err = c.othersHave()
		}
		c.words[othersPid].Store(0)
		if err != nil {
			return err
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
			return err
		}
	}
	return nil
}

// othersHave is a reader's time with the place.
func (c *child) othersHave() error {
	path := c.Share[othersPlace] + "/s"
	_ = os.Remove(path) // of the one that was killed
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer l.Close()
	if err := os.Chmod(path, 0o666); err != nil {
		return err
	}
	way := c.othersHow()
	o := cq.Options{Size: othersSize, Trust: cq.TrustOthers, MaxLanes: 16, Spin: -1,
		Allow: &shm.AllowList{UIDs: []int{othersWriterUID}}, Shared: way == othersRelays}
	if way == othersFD {
		o.Wait = cq.WaitFD
	}
	q, err := cq.CreateAnonymous("others", o)
	if err != nil {
		return err
	}
	deaths, err := cq.CreateAnonymousEvents("deaths", cq.EventOptions{})
	if err != nil {
		return err
	}
	if err := q.BindEvents(deaths); err != nil {
		return err
	}
	known := c.words[othersDeaths].Load()
	c.words[othersPid].Store(uint64(os.Getpid()))
	c.words[othersHolder].Store(q.FID().Generation)
	c.words[othersTurns].Add(1)
	c.words[othersWay+way].Add(1)
	served := make(chan error, 1)
	go func() { served <- q.Serve(l, nil) }() // peers that are killed half way are no news
	told, listening := context.WithCancel(context.Background())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		c.othersMourn(told, q.FID().Generation, known, deaths)
	}()
	done, err := c.othersDrain(q)
	listening()
	<-watched
	err = errors.Join(err, c.othersLeave(q, done))
	_ = l.Close()
	if e := <-served; !errors.Is(e, cq.ErrClosed) && !errors.Is(e, net.ErrClosed) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, deaths.Close())
}

// othersHow chooses how a reader waits: so that it comes to the step at which it is to die.
func (c *child) othersHow() int {
	switch {
	case strings.HasPrefix(c.Step, "relay"):
		return othersRelays
	case strings.HasPrefix(c.Step, "pipe"):
		return othersFD
	}
	return c.rnd.IntN(othersWays)
}

// othersPeek waits for entries as the queue's options say. With a descriptor it looks at nothing
// else until that is readable.
func (c *child) othersPeek(ctx context.Context, q *cq.Queue, n int) ([]cq.Entry, error) {
	if q.Options().Wait != cq.WaitFD {
		return q.PeekContext(ctx, n)
	}
	for {
		es, err := q.Peek(n)
		if !errors.Is(err, cq.ErrAgain) {
			return es, err
		}
		if err = q.TryWait(); err == nil {
			err = readable(ctx, q.FD())
		}
		if err != nil && !errors.Is(err, cq.ErrAgain) {
			return nil, err
		}
	}
}

// othersLeave destroys the queue if everything is read, or leaves it to a successor.
func (c *child) othersLeave(q *cq.Queue, done bool) error {
	if done {
		c.words[othersEnded].Store(1)
		return q.Close()
	}
	leftWord(c.words, q.FID().Generation).Store(q.FID().Generation)
	c.words[othersPid].Store(0)
	return q.Detach()
}

// othersMourn passes on what the library tells of writers that died, and complains if it does not
// tell of one that surely was with this reader.
func (c *child) othersMourn(ctx context.Context, mine, known uint64, deaths *cq.EventQueue) {
	told, due := map[uint64]bool{}, map[uint64]time.Duration{}
	ev := cq.Event{Payload: make([]byte, 0, 128)}
	for ctx.Err() == nil {
		if _, err := deaths.ReadTimeout(&ev, 20*time.Millisecond); err == nil {
			if p, err := cq.ParsePeerEntry(ev.Payload); err == nil && ev.Event == cq.EventPeerDeath {
				c.notice(noticeOthersWriter, p)
				told[uint64(p.PID)] = true
				delete(due, uint64(p.PID))
			}
		}
		for ; known < c.words[othersDeaths].Load(); known++ {
			at := othersLog + 2*(known%othersLogged)
			if pid := c.words[at].Load(); c.words[at+1].Load() == mine && !told[pid] {
				due[pid] = lifetime()
			}
		}
		for pid, since := range due {
			if lifetime()-since > noticeLatest {
				delete(due, pid)
				c.tell(kindUnnoticed, "no event tells of writer process %d, which died", pid)
			}
		}
	}
}

// othersDrain reads until it is all over, or this reader leaves by itself.
func (c *child) othersDrain(q *cq.Queue) (done bool, err error) {
	running, stop := c.running(phaseDrain)
	defer stop()
	var since time.Duration // when nobody posts any more
	for {
		ctx, drain := running, running.Err() != nil
		if drain {
			since = cmp.Or(since, lifetime())
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.Background(), 20*time.Millisecond)
			defer cancel()
		}
		es, err := c.othersPeek(ctx, q, 1+c.rnd.IntN(64))
		switch {
		case drain && errors.Is(err, context.DeadlineExceeded):
			// The deaths of those that were killed last may still have to come.
			if c.othersAllSeen(q.FID().Generation) || lifetime()-since > patience/4 {
				return true, nil
			}
			continue
		case errors.Is(err, context.Canceled), errors.Is(err, cq.ErrAgain):
			continue
		case err != nil:
			return false, fmt.Errorf("peek: %w", err)
		}
		for i := range es {
			c.othersJudge(es[i], q.Redelivered())
		}
		if c.rnd.IntN(50) == 0 { // so that kills find it with entries in its hands
			nap(time.Duration(c.rnd.IntN(5000)) * time.Microsecond)
		}
		for left := len(es); left > 0; {
			n := 1 + c.rnd.IntN(left)
			if err := q.Release(n); err != nil {
				return false, fmt.Errorf("release: %w", err)
			}
			left -= n
		}
		if !drain && c.rnd.IntN(3000) == 0 {
			return false, nil
		}
	}
}

// othersAllSeen tells whether this reader has seen all of the sessions that are its own.
func (c *child) othersAllSeen(mine uint64) bool {
	words := c.ledger.region("others-writer")
	for i := range othersWriters {
		for n := uint64(1); n <= words[othersSessions+i].Load() && n < othersMost; n++ {
			e := othersSessionOf(words, i, n)
			if e.home.Load() == mine && e.seen.Load() < e.published.Load() {
				return false
			}
		}
	}
	return true
}

// othersJudge compares an entry with the ledger.
func (c *child) othersJudge(e cq.Entry, marked bool) {
	if c.Spoil == spoilMark {
		marked = false
	}
	writer, n, ok := othersSplit(e.Data)
	if !ok || e.Tag != mix(e.Data, e.Context) {
		c.tell(kindUnpublished, "nobody posts %+v", e)
		return
	}
	s := othersSessionOf(c.ledger.region("others-writer"), writer, n)
	seen, number := s.seen.Load(), e.Context
	switch {
	case number > s.intent.Load():
		c.tell(kindUnpublished, "number %d of writer %d session %d was never committed, only %d",
			number, writer, n, s.intent.Load())
	case number == seen+1:
		s.seen.Store(number)
	case number <= seen && marked:
		c.words[othersRedelivered].Add(1)
	case number <= seen:
		c.tell(kindDuplicate, "number %d of writer %d session %d came again without a mark; "+
			"%d were seen", number, writer, n, seen)
	default:
		s.seen.Store(number)
		c.tellN(kindLost, number-seen-1, "number %d of writer %d session %d came after %d",
			number, writer, n, seen)
	}
}
