package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/shm"
)

// othersReader is a reader's time with the place.
type othersReader interface {
	// held is its queue, and by the way of waiting that was drawn.
	held() (q othersHeld, by int)
	// wait reads in that way until the context ends, or the reader
	// leaves by itself.
	wait(context.Context) error
	// rest reads what is there when nobody posts any more.
	rest() error
}

// othersHeld is a queue or an event queue.
type othersHeld interface {
	FID() cq.FID
	BindEvents(cq.EventSink) error
	Serve(*net.UnixListener, func(error)) error
	Detach() error
	Close() error
}

// othersSocket is where the reader of a generation listens.
func (c *child) othersSocket(b *between, generation uint64) string {
	return fmt.Sprintf("%s/s%d", c.Share[b.share], generation)
}

// othersRead reads at the place whenever nobody else does, until everything is read.
func (c *child) othersRead(b *between, open func(*child) (othersReader, error)) error {
	lock, err := os.OpenFile(c.Share[b.share]+"/lock", os.O_RDWR|os.O_CREATE, 0o600)
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
			err = c.othersHave(b, open)
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

// othersListen listens for those who follow to a generation.
func (c *child) othersListen(b *between, generation uint64) (*net.UnixListener, error) {
	killed, err := filepath.Glob(c.Share[b.share] + "/s*")
	if err != nil {
		return nil, err
	}
	for _, path := range killed {
		_ = os.Remove(path)
	}
	path := c.othersSocket(b, generation)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// othersHave is a reader's time with the place.
func (c *child) othersHave(b *between, open func(*child) (othersReader, error)) error {
	r, err := open(c)
	if err != nil {
		return err
	}
	q, by := r.held()
	generation := q.FID().Generation
	l, err := c.othersListen(b, generation)
	if err != nil {
		return err
	}
	defer l.Close()
	deaths, err := cq.CreateAnonymousEvents("deaths", cq.EventOptions{})
	if err != nil {
		return err
	}
	if err := q.BindEvents(deaths); err != nil {
		return err
	}
	known := c.words[othersDeaths].Load()
	c.words[othersBy].Store(uint64(by))
	c.words[othersPid].Store(uint64(os.Getpid()))
	if former := c.words[othersHolder].Swap(generation); generation <= former {
		c.tell(kindBroken, "generation %d comes after %d", generation, former)
	}
	c.words[othersHas+c.Index].Store(generation)
	c.words[othersTurns].Add(1)
	served := make(chan error, 1)
	go func() { served <- q.Serve(l, nil) }() // peers that are killed half way are no news
	told, listening := context.WithCancel(context.Background())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		c.othersMourn(told, b, generation, known, deaths)
	}()
	done, err := c.othersDrain(r)
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
func (c *child) othersLeave(q othersHeld, done bool) error {
	c.words[othersHas+c.Index].Store(0)
	if done {
		c.words[othersEnded].Store(1)
		return q.Close()
	}
	generation := q.FID().Generation
	leftWord(c.words, generation).Store(generation)
	c.words[othersPid].Store(0)
	return q.Detach()
}

// othersDrain reads until it is all over, or this reader leaves by itself.
func (c *child) othersDrain(r othersReader) (done bool, err error) {
	running, stop := c.running(phaseDrain)
	defer stop()
	if err = r.wait(running); err != nil {
		return false, err
	}
	if running.Err() == nil {
		return false, nil // it leaves by itself
	}
	if err = r.rest(); err != nil {
		return false, fmt.Errorf("at the end: %w", err)
	}
	return true, nil
}

// othersMourn passes on what the library tells of writers that died, and complains if it does not
// tell of one that surely was with this reader.
func (c *child) othersMourn(ctx context.Context, b *between, mine, known uint64,
	deaths *cq.EventQueue) {
	told, due := map[uint64]bool{}, map[uint64]time.Duration{}
	ev := cq.Event{Payload: make([]byte, 0, 128)}
	for ctx.Err() == nil {
		if _, err := deaths.ReadTimeout(&ev, 20*time.Millisecond); err == nil {
			if p, err := cq.ParsePeerEntry(ev.Payload); err == nil && ev.Event == cq.EventPeerDeath {
				c.notice(b.noticeWriter, p)
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

// othersAllSeen tells whether a reader has seen all of the sessions that are its own.
func (c *child) othersAllSeen(b *between, mine uint64) bool {
	words := c.ledger.region(b.writer)
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

// othersTurn is what readers of all kinds have in common.
type othersTurn struct {
	*child
	b      *between
	way    int
	played bool // something was read
}

// leaves tells whether the reader goes now, by itself.
func (t *othersTurn) leaves() bool {
	if t.Step == crash.DetachSilenced.String() {
		return t.rnd.IntN(50) == 0
	}
	return t.rnd.IntN(3000) == 0
}

// over tells, of one that finds nothing when nobody posts any more, whether that is all.
func (t *othersTurn) over(q othersHeld, since time.Duration) bool {
	return t.othersAllSeen(t.b, q.FID().Generation) || lifetime()-since > patience/4
}

// plays notes that something was read in the way of this turn.
func (t *othersTurn) plays() {
	if !t.played {
		t.played = true
		t.words[othersPlayed+t.way].Add(1)
	}
}

// number compares one entry, which is whole, with the ledger.
func (t *othersTurn) number(name, number uint64, marked bool) {
	if t.Spoil == spoilMark {
		marked = false
	}
	writer, n, ok := othersSplit(name)
	if !ok {
		t.tell(kindUnpublished, "no writer is %#x", name)
		return
	}
	s := othersSessionOf(t.ledger.region(t.b.writer), writer, n)
	seen := s.seen.Load()
	switch {
	case number > s.intent.Load():
		t.tell(kindUnpublished, "number %d of writer %d session %d was never committed, only %d",
			number, writer, n, s.intent.Load())
	case number == seen+1:
		s.seen.Store(number)
	case number <= seen && marked:
		t.words[othersRedelivered].Add(1)
	case number <= seen:
		t.tell(kindDuplicate, "number %d of writer %d session %d came again without a mark; "+
			"%d were seen", number, writer, n, seen)
	default:
		s.seen.Store(number)
		t.tellN(kindLost, number-seen-1, "number %d of writer %d session %d came after %d",
			number, writer, n, seen)
	}
}
