package torture

import (
	"context"
	"errors"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/spin"
)

// The witness is a process that nobody kills, so that what it is not told was not told. It reads a
// queue whose writers, the mortals, are killed, and has a lane of the queue with a name, where it
// posts nothing. Both are bound to its event queue: it must be told of the death of each mortal
// that surely had a lane, and of each reader that surely had the queue.
const (
	watchedQueue = "watched"
	mortals      = 2
	mortalPosts  = 20
)

// Words of each mortal, who stores them.
const (
	mortalLane = iota // process that surely has a lane, or 0
	mortalWords
)

// How deaths are told through event queues.
const (
	noticeReader = "reader-death" // to a writer
	noticeWriter = "writer-death" // to a reader
	noticeUser   = "user-death"   // of a counter, to another one
	noticeOwner  = "owner-death"  // of an address vector, to who looks things up
)

func witnessRole() *role {
	return &role{name: "witness", places: 1, safe: true,
		run: (*child).witness, with: []string{"mortal", "reader"},
		leftovers: func(s *supervisor) []string { return collect(s.dir, watchedQueue) }}
}

func mortalRole() *role {
	return &role{name: "mortal", places: mortals, words: mortals * mortalWords, stops: true,
		run: (*child).beMortal, with: []string{"witness"}, died: mortalDied,
		steps: []crash.Label{crash.AttachClaimed, crash.AttachAnnounced, crash.WriterClosing,
			crash.WriterReleased},
		starting: func(s *supervisor, p *proc) { s.mortal(p)[mortalLane].Store(0) }}
}

func (s *supervisor) mortal(p *proc) tally {
	return tally(s.ledger.region("mortal"))[p.index*mortalWords:][:mortalWords]
}

// mortalDied demands that the witness is told.
func mortalDied(s *supervisor, p *proc) error {
	if s.mortal(p)[mortalLane].Load() == uint64(p.PID()) {
		s.expectAll(p, "witness", noticeWriter)
	}
	return nil
}

// readerDied demands that all are told that have lanes, of one that had the queue. Who has it now
// says nothing: the next one may have got it.
func readerDied(s *supervisor, p *proc) error {
	if s.wasBound(p) {
		s.expectAll(p, "witness", noticeReader)
		s.expectAll(p, "writer", noticeReader)
	}
	return nil
}

// beMortal has a lane of the watched queue, again and again.
func (c *child) beMortal() error {
	mine := c.words[c.Index*mortalWords:][:mortalWords]
	running, stop := c.running(phaseStop)
	defer stop()
	for running.Err() == nil {
		ctx, cancel := context.WithTimeout(running, patience)
		w, err := cq.Attach(ctx, cq.Named(c.dir, watchedQueue), cq.WriterOptions{Wait: true})
		cancel()
		switch {
		case running.Err() != nil && err != nil:
			return nil
		case errors.Is(err, cq.ErrClosed): // the witness ends, or is being started
			nap(time.Millisecond)
			continue
		case err != nil:
			if err := c.attached(err); err != nil {
				return err
			}
			continue
		}
		mine[mortalLane].Store(uint64(c.pid))
		for n := range uint64(c.rnd.IntN(mortalPosts)) {
			if err := w.Post(&cq.Entry{Context: n}); err != nil {
				break // closed
			}
			nap(time.Duration(c.rnd.IntN(5000)) * time.Microsecond)
		}
		mine[mortalLane].Store(0)
		if err := w.Close(); err != nil {
			return err
		}
	}
	return nil
}

// witness reads the watched queue, and tells what it is told.
func (c *child) witness() (err error) {
	eq, end, err := c.followDeaths(c.pass)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	q, err := cq.Create(cq.Named(c.dir, watchedQueue), cq.Options{Size: 64, MaxLanes: maxLanes})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	running, stop := c.running(phaseStop)
	defer stop()
	return errors.Join(q.BindEvents(eq), c.watch(running, q, eq))
}

// watch reads what mortals post, and has a lane in the queue with a name meanwhile.
func (c *child) watch(running context.Context, q *cq.Queue, eq *cq.EventQueue) (err error) {
	ctx, cancel := context.WithTimeout(running, patience)
	defer cancel()
	w, err := cq.Attach(ctx, cq.Named(c.dir, queueName), cq.WriterOptions{Wait: true})
	if err != nil {
		if running.Err() != nil {
			return nil
		}
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err := w.BindEvents(eq); err != nil {
		return err
	}
	c.bound()
	buf := make([]cq.Entry, 16)
	for {
		if _, err := cq.ReadContext(running, q, buf, cq.ReadOptions{}); running.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// readDeaths calls told with what an event queue says of deaths, until the context ends.
func (c *child) readDeaths(ctx context.Context, eq *cq.EventQueue, told func(cq.PeerEntry)) error {
	ev := cq.Event{Payload: make([]byte, 0, 256)}
	for {
		_, err := eq.ReadContext(ctx, &ev, cq.ReadOptions{})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case ev.Event != cq.EventPeerDeath:
			continue
		}
		p, err := cq.ParsePeerEntry(ev.Payload)
		if err != nil {
			return err
		}
		told(p)
	}
}

// pass passes a death on.
func (c *child) pass(p cq.PeerEntry) { c.notice(noticeOf[p.Role], p) }

var noticeOf = map[cq.PeerRole]string{cq.PeerReader: noticeReader, cq.PeerWriter: noticeWriter,
	cq.PeerUser: noticeUser, cq.PeerOwner: noticeOwner}

// followDeaths makes an event queue, and calls tell with each death that it tells, until end.
func (c *child) followDeaths(tell func(cq.PeerEntry)) (eq *cq.EventQueue, end func() error,
	err error) {
	if eq, err = cq.CreateEvents(cq.Unnamed("deaths"), cq.EventOptions{Size: 1024}); err != nil {
		return nil, nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	told := make(chan error, 1)
	go func() { told <- c.readDeaths(ctx, eq, tell) }()
	return eq, func() error {
		stop()
		return errors.Join(<-told, eq.Close())
	}, nil
}

// bound says that this process is told from now on.
func (c *child) bound() {
	now := spin.Now()
	c.boundNs.Store(now)
	c.ledger.word(wordBound + c.Place).Store(uint64(now))
}

// unbound says that it is not any more, soon: when it has told what it owes, or nothing would ever
// be demanded of those who are not bound for long.
func (c *child) unbound() {
	_, start := stat(c.pid)
	owes, me := c.ledger.word(wordOwes+c.Place), process{c.pid, start}.word()
	for owes.Load() == me && c.ledger.phase() == phaseRun {
		nap(time.Millisecond)
	}
	c.ledger.word(wordBound + c.Place).Store(0)
}
