package torture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
)

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
	return &role{name: "event-reader", places: eventReaders, words: heldWords, stops: true,
		drains: true, run: (*child).readEvents, with: []string{"event-writer"},
		steps: []crash.Label{crash.EventCopied, crash.EventPinned, crash.EventReleased,
			crash.SleepNext, crash.SleepEnded, crash.AdoptStarted},
		possession: heldPossession, sum: sumHeld("event-reader"),
		check: checkHeld("event-reader")}
}

func eventWriterRole() *role {
	return &role{name: "event-writer", places: eventWriters, words: sessionsLength(eventWriters),
		stops: true, run: (*child).writeEvents, with: []string{"event-reader"},
		steps: []crash.Label{crash.EventFilled, crash.EventPublished, crash.RingParked,
			crash.RingWoken, crash.AttachWritten, crash.WriterClosing},
		died: sessionsDied, settled: sessionsSettled, sum: sumSessions("event-writer"),
		check: checkSessions("event-writer")}
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

// eventReading takes events from an event queue, and looks at them before.
type eventReading struct {
	*child
	// judge compares a number with the ledger.
	judge     func(name, number uint64, marked bool)
	e         *cq.EventQueue
	ev        cq.Event
	bad       cq.EventError
	text, buf []byte
}

func newEventReading(c *child, judge func(name, number uint64, marked bool)) eventReading {
	return eventReading{child: c, judge: judge, text: make([]byte, 0, eventPayload),
		buf: make([]byte, 0, 2*eventPayload)}
}

func (c *child) readEvents() error {
	j := judge{c, c.ledger.sessions("event-writer"), &c.words[heldAgain]}
	r := newEventReading(c, func(name, number uint64, marked bool) {
		j.number(name, number, marked && c.Spoil != spoilMark)
	})
	o := cq.EventOptions{Size: eventSize, MaxLanes: maxLanes, Lifetime: cq.Persistent,
		DataMaxBytes: eventPayload}
	return c.hold(func(make bool) (held, error) {
		open := cq.AdoptEvents
		if make {
			open = cq.OpenEvents
		}
		e, err := open(c.dir, eventQueue, o)
		r.e = e
		return e, err
	}, func(running context.Context) (done bool, err error) { return r.drain(running, &j) })
}

// drain reads until it is all over, or this reader leaves by itself.
func (r *eventReading) drain(running context.Context, j *judge) (done bool, err error) {
	var since time.Duration
	for {
		ctx, drain := running, running.Err() != nil
		if drain { // nobody writes any more
			since = cmp.Or(since, lifetime())
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
		}
		err := r.next(ctx)
		switch {
		case drain && errors.Is(err, context.DeadlineExceeded):
			if j.drained(since) {
				return true, nil
			}
			continue
		case errors.Is(err, context.Canceled):
			continue
		case err != nil:
			return false, err
		}
		if !drain && r.rnd.IntN(5000) == 0 {
			return false, nil
		}
	}
}

// next waits for an event and takes it.
func (r *eventReading) next(ctx context.Context) error {
	r.ev.Payload = r.buf
	_, err := r.e.PeekContext(ctx, &r.ev)
	return r.take(err)
}

// take takes the event that was peeked at; err is what the peek said.
func (r *eventReading) take(err error) error {
	switch {
	case errors.Is(err, cq.ErrAvail):
		return r.failure()
	case err == nil:
		return r.event()
	}
	return err
}

// look judges an event.
func (r *eventReading) look(ev *cq.Event) {
	if r.Spoil == spoilSkip && r.rnd.IntN(1000) == 0 {
		return
	}
	name, number := ev.Context, ev.Data
	if failedEvent(number) || ev.Event != cq.EventUser || ev.FID != aboutEvent(name, number) ||
		string(eventText(r.text, name, number)) != string(ev.Payload) {
		r.tell(kindUnpublished, "nobody writes the event %+v", *ev)
		return
	}
	r.judge(name, number, ev.Redelivered)
}

// lookErr judges an error event.
func (r *eventReading) lookErr(bad *cq.EventError) {
	name, number := bad.Context, bad.Data
	if !failedEvent(number) || bad.FID != aboutEvent(name, number) ||
		bad.Err != cq.Errno(syscall.EIO) || bad.ProvErrno != int32(number) ||
		string(eventText(r.text, name, number)) != string(bad.ErrData) {
		r.tell(kindUnpublished, "nobody writes the error %+v", *bad)
		return
	}
	r.judge(name, number, bad.Redelivered)
}

// event judges the event that was peeked at and takes it.
func (r *eventReading) event() error {
	r.look(&r.ev)
	name, number := r.ev.Context, r.ev.Data
	r.ev.Payload = r.buf
	if _, err := r.e.Read(&r.ev); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	r.taken(name, number, r.ev.Context, r.ev.Data)
	return nil
}

// failure is event for an error event.
func (r *eventReading) failure() error {
	r.bad.ErrData = r.buf
	if _, err := r.e.PeekErr(&r.bad); err != nil {
		return fmt.Errorf("peek at an error: %w", err)
	}
	r.lookErr(&r.bad)
	name, number := r.bad.Context, r.bad.Data
	r.bad.ErrData = r.buf
	if _, err := r.e.ReadErr(&r.bad); err != nil {
		return fmt.Errorf("read an error: %w", err)
	}
	r.taken(name, number, r.bad.Context, r.bad.Data)
	return nil
}

// taken compares what was peeked at with what was read then.
func (r *eventReading) taken(name, number, name2, number2 uint64) {
	if name2 != name || number2 != number {
		r.tell(kindLost, "number %d of session %#x was peeked at, and number %d of %#x read", number,
			name, number2, name2)
	}
}

// eventPoster is a writer of events in one session.
type eventPoster struct {
	*child
	w    *cq.EventWriter
	name uint64
	s    session
	next uint64
	buf  []byte
}

func (c *child) writeEvents() error {
	return c.sessions(func(name uint64, s session) error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		w, err := cq.AttachEvents(ctx, c.dir, eventQueue, cq.WriterOptions{Wait: true})
		if err != nil {
			return c.attached(err)
		}
		p := &eventPoster{child: c, w: w, name: name, s: s, next: 1, buf: make([]byte, eventPayload)}
		return errors.Join(p.post(), w.Close())
	})
}

func (p *eventPoster) post() error {
	for range 1 + p.rnd.IntN(2000) {
		if p.ledger.phase() != phaseRun {
			return nil
		}
		switch k := p.rnd.IntN(100); {
		case k < 96:
			if err := p.one(); err != nil {
				return err
			}
		case k < 98:
			nap(time.Duration(p.rnd.IntN(2000)) * time.Microsecond)
		default:
			if !p.untilSeen(p.s, p.next-1) {
				return errGaveUp
			}
		}
	}
	return nil
}

func (p *eventPoster) one() error {
	number := p.next
	p.s.intent.Store(number)
	for since := lifetime(); ; {
		err := p.writeEvent(p.w, p.name, number, p.buf)
		if err == nil {
			p.s.published.Store(number)
			p.next++
			return nil
		}
		if err = p.fullLane(err, since, p.s, number-1); err != nil {
			return err
		}
	}
}
