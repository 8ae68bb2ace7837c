package torture

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
)

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
	return c.posts(c.pass, func(_ context.Context, name uint64) (lane, error) {
		w, err := c.attachNamed(queueName)
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
	return c.posts(nil, func(context.Context, uint64) (lane, error) {
		w, err := c.attachNamed(setQueue(c.rnd.IntN(setQueues)))
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

// An event queue with a name: writers in several processes, and readers that take it over. Whoever
// has it peeks at an event, looks at it, and takes it then: so one that was seen comes again at
// most once, and marked.
const (
	eventQueue   = "events"
	eventWriters = 3
	eventReaders = 2
	eventSize    = 64
	eventPayload = 100
)

func eventReaderRole() *role {
	return holder("adoptions", role{name: "event-reader", places: eventReaders,
		run: (*child).readEvents, with: []string{"event-writer"},
		steps: at("event-copied event-pinned event-released sleep- adopt-started")})
}

func eventWriterRole() *role {
	return posting(role{name: "event-writer", places: eventWriters, run: (*child).writeEvents,
		with: []string{"event-reader"},
		steps: at("event-filled event-published ring-parked ring-woken attach-written " +
			"writer-closing")})
}

// eventText is what the payload of an event is, of all lengths.
func eventText(buf []byte, name, number uint64) []byte {
	x := mix(name, number)
	buf = buf[:x%(eventPayload+1)]
	for i := range buf {
		buf[i] = byte(x>>8) + byte(i)
	}
	return buf
}

// failedEvent tells which events are errors.
func failedEvent(number uint64) bool { return number%7 == 0 }

// aboutEvent is what an event is about.
func aboutEvent(name, number uint64) cq.FID {
	return cq.FID{Kind: cq.FIDQueue, ID: mix(name, number), Generation: number}
}

// spoilText is a spoil of who writes events.
const spoilText = "write a payload of another event"

// writeEvent writes the event of a number.
func (c *child) writeEvent(w *cq.EventWriter, name, number uint64, buf []byte) (err error) {
	about, text := aboutEvent(name, number), eventText(buf, name, number)
	if c.Spoil == spoilText && c.rnd.IntN(1000) == 0 {
		text = eventText(buf, name, number+1)
	}
	if failedEvent(number) {
		_, err = w.WriteErr(&cq.EventError{FID: about, Context: name, Data: number, ErrData: text,
			Err: cq.Errno(syscall.EIO), ProvErrno: int32(number)})
	} else {
		_, err = w.Write(&cq.Event{Event: cq.EventUser, FID: about, Context: name, Data: number,
			Payload: text})
	}
	return err
}

// eventTaker takes events from an event queue, and looks at them before.
type eventTaker struct {
	*checker
	ev        cq.Event
	bad       cq.EventError
	text, buf []byte
	ended     chan error // has what ended the work of a handler; nil without one
}

// events is a reading of an event queue.
func (c *child) events() *reading {
	j := c.checks()
	return &reading{checker: j, taker: &eventTaker{checker: j, text: make([]byte, 0, eventPayload),
		buf: make([]byte, 0, 2*eventPayload)}}
}

func (c *child) readEvents() error {
	return c.reads(nil, func(make bool, _ *cq.EventQueue) (*reading, held, error) {
		e, err := cq.OpenEvents(cq.Named(c.dir, eventQueue), cq.EventOptions{Existing: !make,
			Size: eventSize, MaxLanes: maxLanes, Lifetime: cq.Persistent, DataMaxBytes: eventPayload})
		r := c.events()
		r.of, r.way = []cq.Waitable{e}, way{"read", (*reading).byRead}
		return r, e, err
	})
}

// next takes an event, or waits while the library calls the handler.
func (r *eventTaker) next(ctx context.Context, of cq.Waitable) error {
	if r.ended != nil {
		select {
		case err := <-r.ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	e := of.(*cq.EventQueue)
	r.ev.Payload = r.buf
	_, err := e.ReadContext(ctx, &r.ev, cq.ReadOptions{Flags: cq.FlagPeek})
	return r.take(e, err)
}

// some takes a few that are there.
func (r *eventTaker) some(of cq.Waitable) (empty bool, err error) {
	e := of.(*cq.EventQueue)
	for range 1 + r.rnd.IntN(16) {
		r.ev.Payload = r.buf
		_, err := e.Read(&r.ev, cq.FlagPeek)
		if errors.Is(err, cq.ErrWouldBlock) {
			return true, nil
		}
		if err = r.take(e, err); err != nil {
			return false, err
		}
	}
	return false, nil
}

// byHandler waits while the library calls the handler.
func (r *reading) byHandler(ctx context.Context) error { return r.next(ctx, r.of[0]) }

// handle is the handler, in a goroutine of the library.
func (r *eventTaker) handle(ev *cq.Event, err error) {
	var bad *cq.EventError
	switch {
	case ev != nil:
		r.lookEvent(ev)
	case errors.As(err, &bad):
		r.lookErr(bad)
	default:
		r.end(fmt.Errorf("the handler is told: %w", err))
		return
	}
	if r.leaves() {
		r.end(nil)
	}
}

func (r *eventTaker) end(err error) {
	select {
	case r.ended <- err:
	default: // one end is enough
	}
}

// take takes the event that was peeked at; err is what the peek said.
func (r *eventTaker) take(e *cq.EventQueue, err error) error {
	if err == nil {
		r.lookEvent(&r.ev)
		return r.takes(&r.ev.Context, &r.ev.Data, func() (int, error) {
			r.ev.Payload = r.buf
			return e.Read(&r.ev, 0)
		})
	}
	if !errors.Is(err, cq.ErrAvail) {
		return err
	}
	failure := func(flags cq.Flags) (int, error) {
		r.bad.ErrData = r.buf
		return e.ReadErr(&r.bad, flags)
	}
	if _, err := failure(cq.FlagPeek); err != nil {
		return fmt.Errorf("peek at an error: %w", err)
	}
	r.lookErr(&r.bad)
	return r.takes(&r.bad.Context, &r.bad.Data, func() (int, error) { return failure(0) })
}

// whole checks one that is what its writer made it, and keeps it now and then for a moment, so that
// kills find the reader with it.
func (r *eventTaker) whole(name, number uint64, marked bool) {
	r.number(name, number, marked)
	if r.rnd.IntN(500) == 0 {
		nap(time.Duration(r.rnd.IntN(5000)) * time.Microsecond)
	}
}

// lookEvent checks an event.
func (r *eventTaker) lookEvent(ev *cq.Event) {
	if r.skips() {
		return
	}
	name, number := ev.Context, ev.Data
	if failedEvent(number) || ev.Event != cq.EventUser || ev.FID != aboutEvent(name, number) ||
		string(eventText(r.text, name, number)) != string(ev.Payload) {
		r.tell(kindUnpublished, "nobody writes the event %+v", *ev)
		return
	}
	r.whole(name, number, ev.Redelivered)
}

// lookErr checks an error event.
func (r *eventTaker) lookErr(bad *cq.EventError) {
	name, number := bad.Context, bad.Data
	if !failedEvent(number) || bad.FID != aboutEvent(name, number) ||
		bad.Err != cq.Errno(syscall.EIO) || bad.ProvErrno != int32(number) ||
		string(eventText(r.text, name, number)) != string(bad.ErrData) {
		r.tell(kindUnpublished, "nobody writes the error %+v", *bad)
		return
	}
	r.whole(name, number, bad.Redelivered)
}

// takes has read take the event or error that was checked, and compares with it what it took.
func (r *eventTaker) takes(name, number *uint64, read func() (int, error)) error {
	was, at := *name, *number
	if _, err := read(); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if *name != was || *number != at {
		r.tell(kindLost, "number %d of session %#x was peeked at, and number %d of %#x read", at, was,
			*number, *name)
	}
	return nil
}

func (c *child) writeEvents() error {
	return c.posts(nil, func(ctx context.Context, _ uint64) (lane, error) {
		w, err := cq.AttachEvents(ctx, cq.Named(c.dir, eventQueue), cq.WriterOptions{Wait: true})
		return &eventLane{link: link[*cq.EventWriter]{w: w, with: theOnly}}, err
	})
}
