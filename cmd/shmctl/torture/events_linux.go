package torture

import (
	"cmp"
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm/crash"
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

// failed tells which events are errors.
func failedEvent(number uint64) bool { return number%7 == 0 }

// eventReading is a reader's time with the event queue.
type eventReading struct {
	judge
	e         *cq.EventQueue
	ev        cq.Event
	bad       cq.EventError
	text, buf []byte
}

func (c *child) readEvents() error {
	r := &eventReading{judge: judge{c, c.ledger.sessions("event-writer"), &c.words[heldAgain]},
		text: make([]byte, 0, eventPayload), buf: make([]byte, 0, 2*eventPayload)}
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
	}, r.drain)
}

// drain reads until it is all over, or this reader leaves by itself.
func (r *eventReading) drain(running context.Context) (done bool, err error) {
	var since time.Duration
	for {
		ctx, drain := running, running.Err() != nil
		if drain { // nobody writes any more
			since = cmp.Or(since, lifetime())
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
		}
		r.ev.Payload = r.buf
		_, err := r.e.PeekContext(ctx, &r.ev)
		switch {
		case drain && errors.Is(err, context.DeadlineExceeded):
			if r.drained(since) {
				return true, nil
			}
			continue
		case errors.Is(err, context.Canceled):
			continue
		case errors.Is(err, cq.ErrAvail):
			err = r.failure()
		case err == nil:
			err = r.event()
		}
		if err != nil {
			return false, err
		}
		if !drain && r.rnd.IntN(5000) == 0 {
			return false, nil
		}
	}
}

// event judges the event that was peeked at and takes it.
func (r *eventReading) event() error {
	name, number := r.ev.Context, r.ev.Data
	text := eventText(r.text, name, number)
	if failedEvent(number) || string(text) != string(r.ev.Payload) {
		r.tell(kindUnpublished, "nobody writes the event %+v", r.ev)
	} else {
		r.number(name, number, r.marked(r.ev.Redelivered))
	}
	r.ev.Payload = r.buf
	if _, err := r.e.Read(&r.ev); err != nil {
		return err
	}
	if r.ev.Context != name || r.ev.Data != number {
		r.tell(kindLost, "number %d of session %#x was peeked at, and number %d of %#x read", number,
			name, r.ev.Data, r.ev.Context)
	}
	return nil
}

// failure is event for an error event.
func (r *eventReading) failure() error {
	r.bad.ErrData = r.buf
	if _, err := r.e.PeekErr(&r.bad); err != nil {
		return err
	}
	name, number := r.bad.Context, r.bad.Data
	if !failedEvent(number) ||
		string(eventText(r.text, name, number)) != string(r.bad.ErrData) {
		r.tell(kindUnpublished, "nobody writes the error %+v", r.bad)
	} else {
		r.number(name, number, r.marked(r.bad.Redelivered))
	}
	r.bad.ErrData = r.buf
	_, err := r.e.ReadErr(&r.bad)
	return err
}

func (j *judge) marked(marked bool) bool { return marked && j.Spoil != spoilMark }

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
	text := eventText(p.buf, p.name, number)
	for since := time.Now(); ; {
		var err error
		if failedEvent(number) {
			_, err = p.w.WriteErr(&cq.EventError{Context: p.name, Data: number, ErrData: text,
				Err: cq.Errno(syscall.EIO)})
		} else {
			_, err = p.w.Write(&cq.Event{Context: p.name, Data: number, Payload: text})
		}
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
