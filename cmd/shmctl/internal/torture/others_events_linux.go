package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/shm"
)

// Event queues between users, with the events of the event queue that has a name. Readers peek at
// an event, look at it, and take it then; or a handler looks at it.
const othersEventWriters = 2

func othersEventReaderRole() *role {
	return eventsBetween.readerRole((*child).othersEvents, crash.EventCopied, crash.EventPinned,
		crash.EventReleased)
}

func othersEventWriterRole() *role {
	return eventsBetween.writerRole(othersEventWriters, (*child).othersFollowEvents,
		crash.EventFilled, crash.EventPublished)
}

// othersEventReading is a reader's time with its event queue.
type othersEventReading struct {
	othersTurn
	events eventReading
	ended  chan error // has what ended the work of the handler
}

// othersEvents makes an event queue.
func (c *child) othersEvents() (othersReader, error) {
	b := &eventsBetween
	r := &othersEventReading{othersTurn: othersTurn{child: c, b: b, way: c.othersWay(b)},
		ended: make(chan error, 1)}
	r.events = newEventReading(c, r.number)
	o := cq.EventOptions{Size: eventSize, Trust: cq.TrustOthers, MaxLanes: 16, Spin: -1,
		Allow: &shm.AllowList{UIDs: []int{othersWriterUID}}, DataMaxBytes: eventPayload,
		Shared: r.way == othersShared}
	switch r.way {
	case othersFD:
		o.Wait = cq.WaitFD
	case othersLast:
		o.Handler = r.handle
	}
	var err error
	r.events.e, err = cq.CreateAnonymousEvents("others", o)
	return r, err
}

func (r *othersEventReading) held() (q othersHeld, by int) { return r.events.e, r.way }

func (r *othersEventReading) wait(ctx context.Context) error {
	wait := [othersWays]func(context.Context) error{r.byRead, r.byRead, r.byDescriptor, r.bySet,
		r.byHandler}[r.way]
	if err := withoutCancel(wait(ctx)); err != nil {
		return fmt.Errorf("%s: %w", r.b.ways[r.way], err)
	}
	return nil
}

func (r *othersEventReading) rest() error {
	one := r.one
	if r.way == othersLast {
		one = r.byHandler
	}
	for since := lifetime(); ; {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		err := one(ctx)
		cancel()
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			if r.over(r.events.e, since) {
				return nil
			}
		case err != nil:
			return err
		}
	}
}

// number judges one, and keeps it now and then for a moment, so that kills find the reader with it.
func (r *othersEventReading) number(name, number uint64, marked bool) {
	r.plays()
	r.othersTurn.number(name, number, marked)
	if r.rnd.IntN(200) == 0 {
		nap(time.Duration(r.rnd.IntN(5000)) * time.Microsecond)
	}
}

// one waits for an event in a read.
func (r *othersEventReading) one(ctx context.Context) error { return r.events.next(ctx) }

// some takes a few that are there.
func (r *othersEventReading) some() error {
	for range 1 + r.rnd.IntN(16) {
		r.events.ev.Payload = r.events.buf
		_, err := r.events.e.Peek(&r.events.ev)
		if errors.Is(err, cq.ErrWouldBlock) {
			return nil
		}
		if err = r.events.take(err); err != nil {
			return err
		}
	}
	return nil
}

func (r *othersEventReading) byRead(ctx context.Context) error {
	for !r.leaves() {
		if err := r.one(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *othersEventReading) byDescriptor(ctx context.Context) error {
	for !r.leaves() && ctx.Err() == nil {
		err := cq.TryWait(r.events.e)
		if err == nil {
			err = readable(ctx, r.events.e)
		}
		if err != nil && !errors.Is(err, cq.ErrWouldBlock) {
			return err
		}
		if err := r.some(); err != nil {
			return err
		}
	}
	return nil
}

func (r *othersEventReading) bySet(ctx context.Context) (err error) {
	s, err := cq.NewWaitSet(nil, cq.WaitSetOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.Add(r.events.e); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Remove(r.events.e)) }()
	for dst := make([]cq.Waitable, 1); !r.leaves(); {
		if _, err := s.Wait(ctx, dst); err != nil {
			return err
		}
		if err := r.some(); err != nil {
			return err
		}
	}
	return nil
}

// byHandler waits while the library calls the handler.
func (r *othersEventReading) byHandler(ctx context.Context) error {
	select {
	case err := <-r.ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// handle is the handler, in a goroutine of the library.
func (r *othersEventReading) handle(ev *cq.Event, err error) {
	var bad *cq.EventError
	switch {
	case ev != nil:
		r.events.look(ev)
	case errors.As(err, &bad):
		r.events.lookErr(bad)
	default:
		r.end(fmt.Errorf("the handler is told: %w", err))
		return
	}
	if r.leaves() {
		r.end(nil)
	}
}

func (r *othersEventReading) end(err error) {
	select {
	case r.ended <- err:
	default: // one end is enough
	}
}

// eventLink follows readers of event queues.
type eventLink struct {
	link[*cq.EventWriter]
	buf []byte
}

// othersFollowEvents attaches to whoever reads.
func (c *child) othersFollowEvents(ctx context.Context) (othersLink, error) {
	l := &eventLink{buf: make([]byte, eventPayload)}
	l.c, l.b = c, &eventsBetween
	err := l.meet(ctx, func(conn *net.UnixConn) (*cq.EventWriter, error) {
		return cq.AttachEventsConn(ctx, conn, othersOptions())
	})
	return l, err
}

// some writes one event.
func (l *eventLink) some(p *othersPoster) error {
	p.s.intent.Store(p.next)
	for since := lifetime(); ; {
		err := p.writeEvent(l.w, p.name, p.next, l.buf)
		if err == nil {
			p.published(1)
			return nil
		}
		if err = p.again(err, since); err != nil {
			return err
		}
	}
}
