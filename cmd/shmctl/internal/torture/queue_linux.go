package torture

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

// Words of a role of which one process has a thing and the others wait for it to die, at the
// beginning of its words. Whoever has it stores them.
const (
	heldBy    = iota // its number, 0 while nobody surely has it
	heldTimes        // how often it was got
	heldEnded        // it is done with, and being destroyed
	heldAgain        // entries that came again, marked
	heldWords
)

// held is a thing that one process has at a time.
type held interface {
	Detach() error
	Close() error
}

// hold gets the thing when nobody has it, and uses it until it is done. make says that it may not
// exist; once it is destroyed nobody is to make it again.
func (c *child) hold(open func(make bool) (held, error),
	use func(running context.Context) (done bool, err error)) error {
	running, stop := c.running(phaseDrain)
	defer stop()
	for since := stage.Lifetime(); c.words[heldEnded].Load() == 0; {
		h, err := open(c.words[heldTimes].Load() == 0)
		switch {
		case errors.Is(err, syscall.EBUSY), errors.Is(err, cq.ErrClosed),
			errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrExist), errors.Is(err, shm.ErrStale):
			// Somebody has it, or destroys it.
			if stage.Lifetime()-since > patience/4 {
				since = c.barred(since, err)
			}
			nap(500 * time.Microsecond)
			continue
		case err != nil:
			return fmt.Errorf("open: %w", err)
		}
		if err := c.have(running, h, use); err != nil {
			return err
		}
		since = stage.Lifetime()
	}
	return nil
}

// barred tells what keeps this process from a thing that nobody has. It returns since when nobody
// has it, as far as it looked: those who wait may wait for ever while somebody does.
func (c *child) barred(since time.Duration, err error) time.Duration {
	holder := int(c.words[heldBy].Load())
	if holder != 0 && lives(holder) {
		return stage.Lifetime()
	}
	if stage.Lifetime()-since < patience {
		return since
	}
	c.tell(kindHung, "cannot get what nobody has (%d had it): %v", holder, err)
	return stage.Lifetime()
}

// have is one time with it.
func (c *child) have(running context.Context, h held,
	use func(running context.Context) (done bool, err error)) error {
	holder := &c.words[heldBy]
	if former := int(holder.Load()); former != 0 && former != os.Getpid() {
		if survives(former) {
			c.tell(kindUsurped, "got what the living process %d has", former)
		}
		c.notice(noticeAdopted, cq.PeerEntry{PID: former})
	}
	holder.Store(uint64(os.Getpid()))
	c.words[heldTimes].Add(1)
	done, err := use(running)
	holder.Store(0)
	if err != nil {
		return errors.Join(err, h.Detach())
	}
	if !done {
		return h.Detach()
	}
	// Who dies over the destruction leaves something to be collected, and nothing to be got.
	c.words[heldEnded].Store(1)
	return h.Close()
}

// heldPossession: nobody else gets it from a process that is stopped.
func heldPossession(s *supervisor, p *proc) func() string {
	words := s.ledger.region(p.role.name)
	if words[heldBy].Load() != uint64(p.PID()) {
		return nil
	}
	had := words[heldTimes].Load()
	return func() string {
		if words[heldBy].Load() != uint64(p.PID()) || words[heldTimes].Load() > had+1 {
			return "another one got what it has"
		}
		return ""
	}
}

func sumHeld(s *supervisor, r *role, to *RoleReport) {
	to.Redelivered = s.ledger.region(r.name)[heldAgain].Load()
}

func checkHeld(s *supervisor, r *role) {
	if s.ledger.region(r.name)[heldEnded].Load() == 0 {
		s.broken(r.name, kindHung, 1, "nobody came to the end of it")
	}
}

// holder completes a role of which one process has a thing at a time; the report has under times
// how often one got it.
func holder(times string, r role) *role {
	if r.counts == nil {
		r.counts = map[string]int{}
	}
	r.counts[times] = heldTimes
	r.stops, r.drains, r.words = true, true, max(r.words, heldWords)
	r.possession, r.sum, r.check = heldPossession, sumHeld, checkHeld
	return &r
}

// posting completes a role whose processes have sessions; words are those beside.
func posting(r role) *role {
	r.counts = map[string]int{"calms": sessionsLength(r.places) - 1}
	r.stops, r.words = true, r.words+sessionsLength(r.places)
	r.calm, r.settled, r.sum, r.check = calm, sessionsSettled, sumSessions, checkSessions
	if r.died == nil {
		r.died = sessionsDied
	}
	return &r
}

const (
	readers   = 2
	writers   = 4
	maxLanes  = 8
	queueSize = 256
)

// Words of the writers of the queue that has a name, who store them. Sessions come before.
var (
	writerLaneOwner = sessionsLength(writers)    // what session has the lane
	writerLane      = writerLaneOwner + maxLanes // lane that a writer surely has, + 1, or 0
	writerWords     = maxLanes + writers
)

func readerRole() *role {
	return holder("adoptions", role{name: "reader", places: readers, run: (*child).read,
		with:  []string{"writer"},
		tells: map[string]string{"watcher": noticeReader, "writer": noticeReader},
		steps: at("claim- adopt- park- arm-stored sleep- take-marks peek- releasing released " +
			"detach-silenced")})
}

func writerRole() *role {
	return posting(role{name: "writer", places: writers, words: writerWords, run: (*child).write,
		with: []string{"reader"}, tells: map[string]string{"reader": noticeWriter},
		died: writerDied, possession: writerPossession,
		steps: at("claim- attach- filled stamped publish- ring- writer-"),
		starting: func(s *supervisor, p *proc) { // what its predecessor had is anybody's
			s.ledger.region("writer")[writerLane+p.index].Store(0)
		}})
}

// writerPossession: its lane.
func writerPossession(s *supervisor, p *proc) func() string {
	words := s.ledger.region("writer")
	if lane := words[writerLane+p.index].Load(); lane != 0 {
		owner := &words[writerLaneOwner+int(lane)-1]
		if had := owner.Load(); int(had>>32)-1 == p.index {
			return func() string {
				if owner.Load() != had {
					return "another writer got its lane"
				}
				return ""
			}
		}
	}
	return nil
}

// writerDied notes what is left to be read, and has everybody keep still now and then: then no
// successor and no later post looks where the reader should have looked.
func writerDied(s *supervisor, p *proc) error {
	s.ledger.sessions("writer").died(s, p)
	if p.left.want == 0 || s.frozen != nil { // a reader that is stopped sees nothing
		return nil
	}
	if s.rnd.IntN(8) == 0 || !p.shot && afterPublish[p.step] && s.rnd.IntN(2) == 0 {
		return calm(s, p.role)
	}
	return nil
}

// queueTaker takes the entries of queues.
type queueTaker struct{ *checker }

func (c queueTaker) next(ctx context.Context, of cq.Waitable) error {
	q := of.(*cq.Queue)
	es, err := q.PeekContext(ctx, 1+c.rnd.IntN(64))
	if err != nil {
		return err
	}
	return c.take(q, es)
}

func (c queueTaker) some(of cq.Waitable) (empty bool, err error) {
	q := of.(*cq.Queue)
	es, err := q.Peek(1 + c.rnd.IntN(64))
	if errors.Is(err, cq.ErrWouldBlock) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("peek: %w", err)
	}
	return false, c.take(q, es)
}

// take looks at what was handed out, perhaps asks for more of it, and releases it in pieces.
func (c queueTaker) take(q *cq.Queue, es []cq.Entry) error {
	left := c.look(es)
	if c.rnd.IntN(8) == 0 {
		more, err := q.Peek(1 + c.rnd.IntN(16))
		if err != nil && !errors.Is(err, cq.ErrWouldBlock) {
			return fmt.Errorf("peek: %w", err)
		}
		left += c.look(more)
	}
	if c.rnd.IntN(100) == 0 { // so that kills find it with entries in its hands
		nap(time.Duration(c.rnd.IntN(5000)) * time.Microsecond)
	}
	for left > 0 {
		n := left
		if c.rnd.IntN(4) == 0 {
			n = 1 + c.rnd.IntN(left)
		}
		if err := q.Release(n); err != nil {
			return fmt.Errorf("release: %w", err)
		}
		left -= n
	}
	return nil
}

// read opens the queue when nobody else has it, and reads until it is done.
func (c *child) read() error {
	return c.reads(c.pass, func(make bool, deaths *cq.EventQueue) (*reading, held, error) {
		q, err := cq.Open(cq.Named(c.dir, queueName), cq.Options{Existing: !make, Size: queueSize,
			MaxLanes: maxLanes, Lifetime: cq.Persistent})
		if err == nil {
			err = q.BindEvents(deaths)
		}
		return c.queues(way{"read", (*reading).byRead}, q), q, err
	})
}

// ownLane is a lane of which the ledger says who has it.
type ownLane struct {
	queueLane
	word *atomic.Uint64 // of the writer
}

func (l *ownLane) Close() error {
	l.word.Store(0)
	return l.queueLane.Close()
}

// write attaches and posts, session after session.
func (c *child) write() error {
	return c.posts(c.pass, func(ctx context.Context, name uint64) (lane, error) {
		w, err := c.attach(ctx, queueName)
		if err != nil {
			return nil, err
		}
		l := &ownLane{queueLane{link[*cq.Writer]{w: w, with: theOnly}}, &c.words[writerLane+c.Index]}
		c.words[writerLaneOwner+w.Lane()].Store(name)
		l.word.Store(uint64(w.Lane()) + 1)
		return l, nil
	})
}

// Several queues with names that one process reads, which waits for all of them at once: with a
// wait set, with its descriptor, with a completion channel, or by a poll set that it asks now and
// then. Writers post to one of them at a time.
const (
	setQueues  = 3
	setWriters = 3
)

func setQueue(i int) string { return fmt.Sprintf("set-%d", i) }

func setReaderRole() *role {
	return holder("adoptions", role{name: "set-reader", places: 1, words: heldWords + len(setWays),
		run: (*child).readSets, with: []string{"set-writer"},
		steps:  at("domain-taken domain-armed domain-sleep domain-woken notify- park- peek-stored"),
		counts: countWays(heldWords, setWays...)})
}

func setWriterRole() *role {
	return posting(role{name: "set-writer", places: setWriters, run: (*child).writeSets,
		with: []string{"set-reader"},
		steps: at("domain-marked domain-rung ring-marked publish-stored ring-parked " +
			"attach-announced")})
}

func (c *child) writeSets() error {
	return c.posts(nil, func(ctx context.Context, _ uint64) (lane, error) {
		w, err := c.attach(ctx, setQueue(c.rnd.IntN(setQueues)))
		return &queueLane{link[*cq.Writer]{w: w, with: theOnly}}, err
	})
}

// setWays are how the reader waits for all queues.
var setWays = []way{{"wait sets", (*reading).bySet}, {"descriptors", (*reading).bySetDescriptor},
	{"channels", (*reading).byChannel}, {"poll sets", (*reading).byPoll}}

const (
	waySet = iota
	_
	wayChannel
	wayPoll
)

func (c *child) readSets() error {
	return c.reads(nil, func(make bool, _ *cq.EventQueue) (*reading, held, error) {
		at := c.rnd.IntN(len(setWays))
		switch {
		case c.toward("notify"):
			at = wayChannel
		case c.toward("domain") && at == wayPoll:
			at = waySet
		}
		qs, err := c.openSet(make)
		r := c.queues(setWays[at], qs...)
		r.plays = &c.words[heldWords+at]
		return r, qs, err
	})
}

// set is the queues of a reader of several.
type set []*cq.Queue

// openSet gets all queues, or none.
func (c *child) openSet(make bool) (qs set, err error) {
	for i := range setQueues {
		q, err := cq.Open(cq.Named(c.dir, setQueue(i)), cq.Options{Existing: !make, Size: 64,
			MaxLanes: maxLanes, Lifetime: cq.Persistent})
		if err != nil {
			return nil, errors.Join(err, qs.Detach())
		}
		qs = append(qs, q)
	}
	return qs, nil
}

func (qs set) Detach() error { return qs.each((*cq.Queue).Detach) }

func (qs set) Close() error { return qs.each((*cq.Queue).Close) }

func (qs set) each(do func(*cq.Queue) error) (err error) {
	for _, q := range qs {
		err = errors.Join(err, do(q))
	}
	return err
}
