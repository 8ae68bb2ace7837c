package torture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// medium is what is written and read at a site.
type medium struct {
	// open opens or makes an object that is read in a reading's way.
	open func(r *reading, at cq.Place, o cq.Options) (object, error)
	take func(*checker) taker
	// attach makes a writer, and follow has it go on with the successor of a reader that is gone; see
	// [cq.Writer.Follow].
	attach func(context.Context, cq.Place, cq.WriterOptions) (writer, error)
	follow func(context.Context, writer, *net.UnixConn) (writer, error)
	// post posts a little, in one of the ways that there are.
	post func(*poster) error
}

// writer is one of either kind.
type writer interface {
	Lane() int
	ReaderGone() <-chan struct{}
	BindEvents(cq.EventSink) error
	Close() error
}

// object is a queue or an event queue, as its reader has it.
type object interface {
	cq.Waitable
	BindEvents(cq.EventSink) error
	Serve(*net.UnixListener, func(error)) error
	Detach() error
	Close() error
}

var queues = &medium{
	open: func(r *reading, at cq.Place, o cq.Options) (object, error) {
		if r.between() {
			return cq.Create(at, o)
		}
		return cq.Open(at, o)
	},
	take: func(j *checker) taker { return queueTaker{j} },
	attach: func(ctx context.Context, at cq.Place, o cq.WriterOptions) (writer, error) {
		return cq.Attach(ctx, at, o)
	},
	follow: func(ctx context.Context, w writer, conn *net.UnixConn) (writer, error) {
		return w.(*cq.Writer).Follow(ctx, conn)
	},
	post: (*poster).somehow,
}

// The events of event queues have payloads or are errors. Whoever has one peeks at an event, looks
// at it, and takes it then, so one that was seen comes again at most once, and marked; or a handler
// looks at it.
var events = &medium{
	open: func(r *reading, at cq.Place, o cq.Options) (object, error) {
		eo := cq.EventOptions{Existing: o.Existing, Size: o.Size, MaxLanes: o.MaxLanes,
			Lifetime: o.Lifetime, Trust: o.Trust, Allow: o.Allow, Spin: o.Spin, Shared: o.Shared,
			Wait: o.Wait, DataMaxBytes: eventPayload}
		if r.way.handled {
			t := r.taker.(*eventTaker)
			t.ended, eo.Handler = make(chan error, 1), t.handle
		}
		if r.between() {
			return cq.CreateEvents(at, eo)
		}
		return cq.OpenEvents(at, eo)
	},
	take: func(j *checker) taker {
		return &eventTaker{checker: j, buf: make([]byte, 0, 2*eventPayload)}
	},
	attach: func(ctx context.Context, at cq.Place, o cq.WriterOptions) (writer, error) {
		return cq.AttachEvents(ctx, at, o)
	},
	follow: func(ctx context.Context, w writer, conn *net.UnixConn) (writer, error) {
		return w.(*cq.EventWriter).Follow(ctx, conn)
	},
	post: (*poster).event,
}

// queueTaker takes the entries of queues.
type queueTaker struct{ *checker }

func (c queueTaker) some(ctx context.Context, of cq.Waitable) (empty bool, err error) {
	q, n := of.(*cq.Queue), 1+c.rnd.IntN(64)
	var es []cq.Entry
	if ctx == atOnce {
		es, err = q.Peek(n)
	} else {
		es, err = q.PeekContext(ctx, n)
	}
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

const eventPayload = 100

// eventText is what the payload of an event is, of all lengths.
func eventText(name, number uint64) []byte {
	x := mix(name, number)
	return endText()[x>>8%256:][:x%(eventPayload+1)]
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
func (c *child) writeEvent(w *cq.EventWriter, name, number uint64) (err error) {
	about, text := aboutEvent(name, number), eventText(name, number)
	if c.Spoil == spoilText && c.rnd.IntN(1000) == 0 {
		text = eventText(name, number+1)
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
	ev    cq.Event
	bad   cq.EventError
	buf   []byte
	ended chan error // has what ended the work of a handler; nil without one
}

// some takes a few events that are there, or one that it waits for, or waits while the library
// calls the handler.
func (r *eventTaker) some(ctx context.Context, of cq.Waitable) (empty bool, err error) {
	if r.ended != nil {
		select {
		case err := <-r.ended:
			return false, err
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	e := of.(*cq.EventQueue)
	if ctx != atOnce {
		r.ev.Payload = r.buf
		_, err := e.ReadContext(ctx, &r.ev, cq.ReadOptions{Flags: cq.FlagPeek})
		return false, r.take(e, err)
	}
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

// handle is the handler, in a goroutine of the library.
func (r *eventTaker) handle(ev *cq.Event, err error) {
	var bad *cq.EventError
	if ev == nil && !errors.As(err, &bad) {
		r.end(fmt.Errorf("the handler is told: %w", err))
		return
	}
	r.look(ev, bad)
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
		r.look(&r.ev, nil)
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
	r.look(nil, &r.bad)
	return r.takes(&r.bad.Context, &r.bad.Data, func() (int, error) { return failure(0) })
}

// look checks an event, or an error event, and keeps it now and then for a moment, so that kills
// find the reader with it.
func (r *eventTaker) look(ev *cq.Event, bad *cq.EventError) {
	if r.skips() {
		return
	}
	whole := bad != nil && bad.Err == cq.Errno(syscall.EIO) && bad.ProvErrno == int32(bad.Data)
	if bad == nil {
		whole = ev.Event == cq.EventUser
		bad = &cq.EventError{FID: ev.FID, Context: ev.Context, Data: ev.Data, ErrData: ev.Payload,
			Redelivered: ev.Redelivered}
	}
	name, number := bad.Context, bad.Data
	if !whole || failedEvent(number) != (ev == nil) || bad.FID != aboutEvent(name, number) ||
		!bytes.Equal(eventText(name, number), bad.ErrData) {
		r.tell(kindUnpublished, "nobody writes the event %+v or error %+v", ev, *bad)
		return
	}
	r.number(name, number, bad.Redelivered)
	if r.rnd.IntN(500) == 0 {
		nap(time.Duration(r.rnd.IntN(5000)) * time.Microsecond)
	}
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

// begin attaches to whoever reads, and waits for one.
func (p *poster) begin(ctx context.Context) (err error) {
	b := p.role.site
	if p.between() {
		return p.meet(ctx, func(conn *net.UnixConn) (writer, error) {
			return b.attach(ctx, cq.Over(conn), cq.WriterOptions{Trust: cq.CrossUser,
				Allow: &shm.AllowList{UIDs: []int{othersReaderUID}}})
		})
	}
	at := p.rnd.IntN(len(b.names))
	p.w, err = b.attach(ctx, cq.Named(p.dir, b.names[at]), cq.WriterOptions{Wait: true})
	if err != nil {
		return err
	}
	p.at(theOnly)
	owner := sessionsLength(p.role.places) + at*maxLanes + p.w.Lane()
	p.words[owner].Store(p.name)
	p.owns(owner)
	return nil
}

// meet tries until somebody is there.
func (p *poster) meet(ctx context.Context, with func(*net.UnixConn) (writer, error)) error {
	for {
		conn, generation, err := p.othersDial(ctx)
		if err == nil {
			var w writer
			w, err = with(conn)
			_ = conn.Close() // the writer has its own
			if err == nil {
				p.w = w
				p.at(generation)
				return nil
			}
			if !passing(err) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the last try: %w", ctx.Err(), err)
		case <-time.After(time.Millisecond):
		}
	}
}

// passing tells errors of a reader that is gone or going. One that is told to be gone and then to
// live is not among them.
func passing(err error) bool {
	var lives *shm.BusyError
	if errors.As(err, &lives) {
		return false
	}
	return isAny(err, cq.ErrPeerGone, cq.ErrClosed, cq.ErrLanes, cq.ErrTimedOut, shm.ErrStale,
		cq.ErrBusy, syscall.EPIPE, syscall.ECONNRESET)
}

// othersDial connects to the reader that there is, and says which one that is.
func (c *child) othersDial(ctx context.Context) (*net.UnixConn, uint64, error) {
	generation := c.ledger.region(c.role.site.reader)[siteHolder].Load()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.othersSocket(generation))
	if err != nil {
		return nil, 0, err
	}
	return conn.(*net.UnixConn), generation, nil
}

// at notes with what reader the lane is now.
func (p *poster) at(generation uint64) {
	p.s.reader.Store(generation)
	p.has(generation)
}

// renew goes on with the next reader.
func (p *poster) renew() error {
	p.ledger.word(wordHad + p.Place).Store(p.s.reader.Load())
	p.has(0)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := p.meet(ctx, func(conn *net.UnixConn) (writer, error) {
		return p.role.site.follow(ctx, p.w, conn)
	})
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			p.tell(kindHung, "no reader to follow for %v: %v", patience, err)
			return errGaveUp
		}
		return fmt.Errorf("renew: %w", err)
	}
	return nil
}
