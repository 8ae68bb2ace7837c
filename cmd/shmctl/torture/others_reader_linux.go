package torture

import (
	"context"
	"errors"
	"net"
	"os"
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
	// Where it cannot enter: bells have no name then, as nothing that is between users has.
	if err := os.Setenv(shm.EnvDir, c.Base+"/"+queuesDir); err != nil {
		return err
	}
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
	way := c.othersWay()
	q, err := cq.CreateAnonymous("others", way.options())
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
	c.words[othersHas+c.Index].Store(q.FID().Generation)
	c.words[othersTurns].Add(1)
	served := make(chan error, 1)
	go func() { served <- q.Serve(l, nil) }() // peers that are killed half way are no news
	told, listening := context.WithCancel(context.Background())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		c.othersMourn(told, q.FID().Generation, known, deaths)
	}()
	done, err := c.othersDrain(q, way)
	listening()
	<-watched
	err = errors.Join(err, c.othersLeave(q, done))
	_ = l.Close()
	if e := <-served; !errors.Is(e, cq.ErrClosed) && !errors.Is(e, net.ErrClosed) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, deaths.Close())
}

// othersLeave destroys the queue if everything is read, or leaves it to a successor.
func (c *child) othersLeave(q *cq.Queue, done bool) error {
	c.words[othersHas+c.Index].Store(0)
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
