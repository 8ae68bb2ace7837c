package torture

import (
	"context"
	"errors"
	"fmt"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
)

// Several queues with names that one process reads, which waits for all of them at once: with a
// wait set, with its descriptor, with a completion channel, or by a poll set that it asks now and
// then. Writers post to one of them at a time.
const (
	setQueues  = 3
	setWriters = 3
)

func setQueue(i int) string { return fmt.Sprintf("set-%d", i) }

func setReaderRole() *role {
	return &role{name: "set-reader", places: 1, words: heldWords + len(setWays), stops: true,
		drains: true,
		run:    (*child).readSets, with: []string{"set-writer"},
		steps: []crash.Label{crash.DomainTaken, crash.DomainArmed, crash.DomainSleep,
			crash.DomainWoken, crash.NotifyArmed, crash.NotifyFired, crash.ParkStored,
			crash.ParkPaid, crash.PeekStored},
		possession: heldPossession, check: checkHeld("set-reader"),
		sum: func(s *supervisor, r *RoleReport) {
			sumHeld("set-reader")(s, r)
			for i, way := range setWays {
				r.Counts[way.name] = s.ledger.region("set-reader")[heldWords+i].Load()
			}
		}}
}

func setWriterRole() *role {
	return &role{name: "set-writer", places: setWriters, words: sessionsLength(setWriters),
		stops: true, run: (*child).writeSets, with: []string{"set-reader"},
		steps: []crash.Label{crash.DomainMarked, crash.DomainRung, crash.RingMarked,
			crash.PublishStored, crash.RingParked, crash.AttachAnnounced},
		died: sessionsDied, settled: sessionsSettled, sum: sumSessions("set-writer"),
		check: checkSessions("set-writer")}
}

func (c *child) writeSets() error {
	return c.sessions(func(name uint64, s session) error {
		w, err := c.attach(setQueue(c.rnd.IntN(setQueues)))
		if w == nil {
			return err
		}
		return errors.Join(c.poster(&queueLane{link[*cq.Writer]{w: w}}, name, s).session(), w.Close())
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
	j := c.judges("set-writer", heldAgain)
	r := &reading{judge: j, taker: queueTaker{j}}
	return c.hold(func(make bool) (held, error) {
		qs, err := c.openSet(make)
		r.of = nil
		for _, q := range qs {
			r.of = append(r.of, q)
		}
		return qs, err
	}, func(running context.Context) (done bool, err error) {
		at := c.rnd.IntN(len(setWays))
		switch {
		case c.toward("notify"):
			at = wayChannel
		case c.toward("domain") && at == wayPoll:
			at = waySet
		}
		r.way, j.plays = setWays[at], &c.words[heldWords+at]
		return r.drain(running)
	})
}

// set is the queues of a reader of several.
type set []*cq.Queue

// openSet gets all queues, or none.
func (c *child) openSet(make bool) (qs set, err error) {
	open := cq.Adopt
	if make {
		open = cq.Open
	}
	for i := range setQueues {
		q, err := open(c.dir, setQueue(i), cq.Options{Size: 64, MaxLanes: maxLanes,
			Lifetime: cq.Persistent})
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
