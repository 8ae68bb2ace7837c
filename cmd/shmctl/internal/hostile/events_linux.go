package hostile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/shmring/shmring/cq"
)

const eventData = 500 // bytes at most, as all event queues of a run are made

func (c *child) eventOptions(size int) cq.EventOptions {
	o := cq.EventOptions{Size: size, MaxLanes: queueLanes, DataMaxBytes: eventData, Trust: c.trust(),
		Spin: -1}
	if o.Trust == cq.CrossUser {
		o.Allow = everybody()
	}
	return o
}

// victimEvents reads an event queue to which attackers and an honest writer write.
func victimEvents(c *child) error {
	q, err := cq.CreateAnonymousEvents("victim", c.eventOptions(64))
	if err != nil {
		return err
	}
	l, err := listen(c.path(fmt.Sprintf(queueSocket, 0)))
	if err != nil {
		return err
	}
	over := make(chan error, 1)
	go func() { over <- q.Serve(l, func(err error) { c.refusedBy("serve", err) }) }()
	time.Sleep(5 * time.Millisecond)
	before := held()
	c.ready()
	w, rnd := c.witness(), c.split()
	told := uint64(0)
	look := func() {
		if c.lookAtEvents(q, rnd, w) {
			told++
		}
	}
	for c.ctx.Err() == nil {
		look()
	}
	c.settles(before, nil, look)
	c.allTold(func() uint64 { return q.Stats().GivenUp }, &told, look)
	err = errors.Join(l.Close(), q.Close())
	if why := <-over; !errors.Is(why, cq.ErrClosed) && !errors.Is(why, net.ErrClosed) {
		err = errors.Join(err, why)
	}
	return err
}

// lookAtEvents reports whether it was told that a lane was given up.
func (c *child) lookAtEvents(q *cq.EventQueue, rnd *rand.Rand, w *witness) (told bool) {
	defer c.watch("a look at an event queue")()
	before := q.Stats()
	room := make([]byte, 0, 8+rnd.IntN(eventData))
	ev := cq.Event{Payload: room}
	what, n, err, bound := "read an event", 0, error(nil), uint64(plainBound)
	if rnd.IntN(8) == 0 { // not to be confused with the read
		_, err = q.Read(&cq.Event{Payload: make([]byte, 0, 8)}, cq.FlagPeek)
		what = "peek at an event"
	} else if rnd.IntN(2) == 0 {
		n, err = q.ReadContext(context.Background(), &ev, cq.ReadOptions{Timeout: 2 * time.Millisecond})
		bound = waitBound
	} else {
		n, err = q.Read(&ev, 0)
	}
	after := q.Stats()
	c.steps(what, after.Sleeps-before.Sleeps+after.Barriers-before.Barriers, bound)
	small := new(cq.TooSmallError)
	if errors.As(err, &small) {
		ev.Payload = make([]byte, 0, eventData+256)
		n, err = q.Read(&ev, 0)
		if errors.As(err, &small) {
			c.broken(unbounded, "an event of more than there can be: %v", err)
			err = nil
		}
	}
	if errors.Is(err, cq.ErrAvail) {
		e := cq.EventError{ErrData: make([]byte, 0, rnd.IntN(2*eventData))}
		if _, err = q.ReadErr(&e, 0); len(e.ErrData) > eventData+256 || e.ErrDataBytes > eventData+256 {
			c.broken(unbounded, "%d of %d bytes of detail", len(e.ErrData), e.ErrDataBytes)
		}
		c.counts[foreign].Add(1)
	}
	c.judge(what, err)
	if n > 0 {
		w.event(&ev)
	}
	return errors.As(err, new(*cq.LaneError))
}

func honestEvent(key, who, n uint64) cq.Event {
	s := seal(key, who, n)
	return cq.Event{Event: cq.EventUser, FID: cq.FID{ID: ^s}, Context: who, Data: n,
		Payload: binary.LittleEndian.AppendUint64(nil, s)}
}

func (w *witness) event(ev *cq.Event) {
	want := honestEvent(w.c.Key, ev.Context, ev.Data)
	if ev.Event != want.Event || ev.FID != want.FID || string(ev.Payload) != string(want.Payload) {
		w.c.counts[foreign].Add(1)
		return
	}
	w.number(ev.Context, ev.Data)
}

// writeSomeEvent writes what looks like anything.
func writeSomeEvent(rnd *rand.Rand, w *cq.EventWriter) (err error) {
	if rnd.IntN(4) == 0 {
		_, err = w.WriteErr(&cq.EventError{Err: cq.Errno(rnd.Int32()),
			ErrData: make([]byte, rnd.IntN(eventData))})
		return err
	}
	_, err = w.Write(&cq.Event{Event: cq.EventKind(rnd.Uint32() >> rnd.IntN(32)),
		Context: rnd.Uint64N(4), Payload: make([]byte, rnd.IntN(eventData))})
	return err
}

// writeSomehow writes as a victim does.
func writeSomehow(rnd *rand.Rand, w *cq.EventWriter) (err error) {
	if rnd.IntN(4) == 0 {
		_, err = w.WriteErr(&cq.EventError{Err: cq.EOverrun, ErrData: make([]byte, 100)})
	} else {
		_, err = w.Write(&cq.Event{Event: cq.EventNotify, Payload: make([]byte, 100)})
	}
	return err
}

// attackEventReader has event queues whose memory is scribbled over.
func attackEventReader(c *child) error {
	l, err := listen(c.path(fmt.Sprintf(attackerSocket, c.Index)))
	if err != nil {
		return err
	}
	c.ready()
	for c.ctx.Err() == nil {
		q, err := cq.CreateAnonymousEvents("attacker", c.eventOptions(16<<c.rnd.IntN(6)))
		if err != nil {
			return err
		}
		for range 1 + c.rnd.IntN(8) {
			if c.rnd.IntN(2) == 0 {
				c.acceptOne(l, q)
			}
			c.raid(func(stop <-chan struct{}) { c.acceptEvents(l, q, stop) })
		}
		if q.Close() != nil {
			return nil
		}
	}
	return nil
}

func (c *child) acceptEvents(l *net.UnixListener, q *cq.EventQueue, stop <-chan struct{}) {
	var busy sync.WaitGroup
	busy.Go(func() {
		for !stopped(stop) {
			_, _ = q.ReadContext(context.Background(), &cq.Event{Payload: make([]byte, 0, 1<<10)},
				cq.ReadOptions{Timeout: time.Millisecond})
			_, _ = q.ReadErr(&cq.EventError{}, 0)
		}
	})
	for !stopped(stop) {
		c.acceptOne(l, q)
	}
	busy.Wait()
}
