package torture

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
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
