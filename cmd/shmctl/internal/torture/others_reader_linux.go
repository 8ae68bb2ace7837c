package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
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
	for c.words[othersEnded].Load() == 0 {
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			nap(500 * time.Microsecond)
			continue
		}
		if c.words[othersEnded].Load() == 0 {
			err = c.othersHave(open)
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

// othersHave is a reader's time with the place.
func (c *child) othersHave(open othersOpen) error {
	b := c.role.between
	at := c.rnd.IntN(othersWays)
	step, _, _ := strings.Cut(c.Step, "-")
	if toward := b.toward[step]; toward != nil {
		at = toward[c.rnd.IntN(len(toward))]
	}
	r, q, err := open(c, at)
	if err != nil {
		return err
	}
	generation := q.FID().Generation
	r.way, r.mine, r.plays = b.ways[at], generation, &c.words[othersPlayed+at]
	l, err := c.othersListen(generation)
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
	c.words[othersBy].Store(uint64(at))
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
	running, stop := c.running(phaseDrain)
	done, err := r.drain(running)
	stop()
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

// othersMourn passes on what the library tells of writers that died, and complains if it does not
// tell of one that surely was with this reader.
func (c *child) othersMourn(ctx context.Context, b *between, mine, known uint64,
	deaths *cq.EventQueue) {
	told, due := map[uint64]bool{}, map[uint64]time.Duration{}
	ev := cq.Event{Payload: make([]byte, 0, 128)}
	for ctx.Err() == nil {
		if _, err := deaths.ReadContext(context.Background(), &ev,
			cq.ReadOptions{Timeout: 20 * time.Millisecond}); err == nil {
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

// othersQueue makes a queue.
func (c *child) othersQueue(at int) (*reading, othersHeld, error) {
	o := cq.Options{Size: othersSize, Trust: cq.CrossUser, MaxLanes: 16, Spin: -1,
		Allow: &shm.AllowList{UIDs: []int{othersWriterUID}}, Shared: at == othersShared}
	if at == othersFD {
		o.Wait = cq.WaitFD
	}
	q, err := cq.CreateAnonymous("others", o)
	j := c.judges(c.role.between.writer, othersRedelivered)
	return &reading{judge: j, taker: queueTaker{j}, of: []cq.Waitable{q}}, q, err
}

// othersEvents makes an event queue.
func (c *child) othersEvents(at int) (*reading, othersHeld, error) {
	j := c.judges(c.role.between.writer, othersRedelivered)
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
	e, err := cq.CreateAnonymousEvents("others", o)
	return &reading{judge: j, taker: events, of: []cq.Waitable{e}}, e, err
}
