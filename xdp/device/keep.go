package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/shm"
)

const (
	firstBackoff = 5 * time.Millisecond
	lastBackoff  = 500 * time.Millisecond
)

// keep watches the server, and looks for the next one when it is gone.
func (e *Endpoint) keep(s *session) {
	e.follow(s)
	for {
		why := <-s.ended
		if e.ctx.Err() != nil {
			return
		}
		generation := s.grant.generation
		e.lose(s, why)
		if e.req.NoReconnect {
			return
		}
		next := e.seek(generation)
		if next == nil {
			return
		}
		s = next
	}
}

// follow listens in a goroutine of its own, so that who is told of the session can ask the server.
func (e *Endpoint) follow(s *session) {
	go func() { s.ended <- e.listen(s) }()
}

// listen reads the connection until it ends, and returns why.
func (e *Endpoint) listen(s *session) error {
	stop := context.AfterFunc(e.ctx, func() { _ = s.wire.Conn.CloseRead() })
	defer stop()
	for {
		h, err := s.wire.next()
		if err != nil {
			return err
		}
		if h.step != stepDone {
			return h.expect(stepDone) // the reason, if it is the last thing that the server says
		}
		if !e.answered(s, &h) {
			return fmt.Errorf("%w: an answer to nothing", ErrProtocol)
		}
		s.answers <- h // it has room for the one answer that is owed
	}
}

// answered notes a port that was taken. It is done here and not where the question was asked, so
// that the next server is asked for the port too if this one dies now. It reports false if there
// was no question; how long ago that was says nothing, since either side may have been stopped.
func (e *Endpoint) answered(s *session, h *hello) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !s.asked {
		return false
	}
	if s.wanted != 0 && h.status == 0 {
		e.ports = append(e.ports, s.wanted)
	}
	s.asked, s.wanted = false, 0
	return true
}

// lose ends a session whose server is gone, or is not to be believed: every send gets its
// completion, from here if the server did not publish it.
func (e *Endpoint) lose(s *session, why error) {
	crash.At(crash.AppNoticed)
	e.mu.Lock()
	e.sess, e.leaving, e.why = nil, s, why
	e.former = append(e.former, s.umem)
	if len(e.former) > keptFormer {
		_ = closeNow(e.former[0].Region)
		e.former = slices.Delete(e.former, 0, 1)
	}
	e.mu.Unlock()
	s.part(e.ctx)
	lost := e.unanswered(s)
	_ = s.close()
	crash.At(crash.AppLost)
	for _, c := range lost {
		e.cancelled(c)
	}
	crash.At(crash.AppCancelled)
	e.notify(Event{Generation: s.grant.generation, PID: s.peer.PID,
		Cancelled: len(lost), Err: why})
}

// unanswered takes back the slots that the server of a session had, and returns the contexts of the
// sends that it did not complete.
func (e *Endpoint) unanswered(s *session) (lost []uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.slots {
		slot := &e.slots[i]
		if !slot.busy {
			continue
		}
		slot.busy = false
		if slot.inject || e.ended(s, i) {
			continue
		}
		lost = append(lost, slot.context)
	}
	e.leaving = nil
	e.base.addServer(s.counts())
	e.stats.Cancelled += uint64(len(lost))
	return lost
}

// cancelled answers one send. A full lane is the application's own doing: it is waited for.
func (e *Endpoint) cancelled(c uint64) {
	entry := cq.ErrorEntry{Context: c, Flags: sendFlags,
		Err: cq.Errno(syscall.ECANCELED), ProvErrno: int32(syscall.ENOTCONN)}
	for e.own.PostError(&entry) == cq.ErrFull {
		select {
		case <-e.ctx.Done():
			return
		case <-time.After(firstBackoff):
		}
	}
}

func (e *Endpoint) notify(ev Event) {
	if e.req.Notify != nil {
		e.req.Notify(ev)
	}
	if e.req.Events == nil {
		return
	}
	news := cq.Event{Event: cq.EventPeerDeath, Context: e.req.Context, Data: uint64(ev.Cancelled)}
	if ev.Err == nil {
		news.Event, news.Data = cq.EventConnected, ev.Generation
	}
	_, _ = e.req.Events.Write(&news) // the calls tell it too
	crash.At(crash.AppTold)
}

// seek returns the next session, or nil when the endpoint is closed.
func (e *Endpoint) seek(generation uint64) *session {
	for wait := firstBackoff; ; wait = min(2*wait, lastBackoff) {
		select {
		case <-e.ctx.Done():
			return nil
		case <-time.After(wait):
		}
		ctx, cancel := context.WithTimeout(e.ctx, helloWait)
		s, err := e.connect(ctx, generation)
		if err == nil {
			crash.At(crash.AppMapped)
			err = e.switchTo(s)
		}
		if err != nil {
			e.mu.Lock()
			e.why = err
			e.mu.Unlock()
		}
		cancel()
		switch {
		case errors.Is(err, errSameFrames):
			return nil
		case err != nil:
			continue
		}
		crash.At(crash.AppSwitched)
		// Sends are accepted by now, so this is over when the server has answered or is gone, and not
		// when it takes long: it may be stopped.
		if err = s.start(e.ctx); e.ctx.Err() != nil {
			return nil
		}
		if err != nil {
			s.ended <- err
		} else {
			e.follow(s)
		}
		e.notify(Event{Generation: s.grant.generation, PID: s.peer.PID})
		return s
	}
}

// switchTo makes s the session, unless a port was dropped after s was asked to take it.
func (e *Endpoint) switchTo(s *session) error {
	e.mu.Lock()
	same := slices.Equal(s.ports, e.ports)
	if same {
		e.sess, e.why = s, nil
		e.stats.Reconnects++
	}
	e.mu.Unlock()
	if same {
		return nil
	}
	_ = errors.Join(s.close(), closeRegion(s.umem.Region))
	return fmt.Errorf("%w: a port was dropped meanwhile", ErrBusy)
}

// helloWait is how long a server may take from connecting to start.
var helloWait = 10 * time.Second

// Take takes one more UDP port; datagrams to it arrive from then on. Errors are those of Dial, and
// [ErrServerGone]. If the context ends first, a port that is granted later is given back, and
// whoever asks meanwhile waits for that.
func (e *Endpoint) Take(ctx context.Context, port uint16) error {
	return e.ask(ctx, "take port", stepTake, port)
}

// Drop gives a port back. It is given back as well if the error is [ErrServerGone].
func (e *Endpoint) Drop(ctx context.Context, port uint16) error {
	return e.ask(ctx, "drop port", stepDrop, port)
}

func (e *Endpoint) ask(ctx context.Context, op string, what uint16, port uint16) error {
	e.mu.Lock()
	s, gone := e.sess, e.absent(op)
	e.mu.Unlock()
	if s == nil {
		if what == stepDrop {
			e.forgetPort(port)
		}
		return gone
	}
	done := make(chan error)
	go func() { // to its end, whatever becomes of ctx
		s.asking.Lock()
		defer s.asking.Unlock()
		err := e.exchange(s, what, port)
		select {
		case done <- err:
		case <-ctx.Done(): // the caller does not have the port, and whoever asks next finds it free
			if what == stepTake && err == nil {
				_ = e.exchange(s, stepDrop, port)
			}
		}
	}()
	select {
	case err := <-done:
		if err != nil {
			return failed(op, e.path, err, "")
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (e *Endpoint) question(s *session, what uint16, port uint16) error {
	s.asking.Lock()
	defer s.asking.Unlock()
	return e.exchange(s, what, port)
}

// exchange is a question and its answer. s.asking is held.
func (e *Endpoint) exchange(s *session, what uint16, port uint16) error {
	if what == stepDrop { // before: if the server dies now the next one is not asked for it
		if now := e.forgetPort(port); now != nil && now != s {
			return e.question(now, what, port) // which was asked for it already
		}
	}
	if err := e.pose(s, what, port); err != nil {
		return err
	}
	crash.At(crash.AppAsked)
	return e.awaitAnswer(s)
}

// pose sends a question. It is noted before: the answer may come at once.
func (e *Endpoint) pose(s *session, what uint16, port uint16) error {
	e.mu.Lock()
	if s.asked = true; what == stepTake {
		s.wanted = port
	}
	e.mu.Unlock()
	if err := s.wire.send(hello{step: what, ports: []uint16{port}}); err != nil {
		return s.unsaid(e, err)
	}
	return nil
}

func (e *Endpoint) awaitAnswer(s *session) error {
	select {
	case h := <-s.answers:
		crash.At(crash.AppAnswered)
		return h.expect(stepDone)
	case <-s.over:
	}
	select {
	case h := <-s.answers: // that came before the end
		return h.expect(stepDone)
	default:
		return ErrServerGone
	}
}

// unsaid is what a question ends with that could not be sent: there will be no answer.
func (s *session) unsaid(e *Endpoint, err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.asked, s.wanted = false, 0
	if hungUp(err) {
		return ErrServerGone
	}
	return err
}

// forgetPort has no server asked for the port from now on, and returns the session that there is.
func (e *Endpoint) forgetPort(port uint16) *session {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ports = slices.DeleteFunc(e.ports, func(p uint16) bool { return p == port })
	return e.sess
}

// Close leaves the device process, which takes ports and frames back. Sends under way are not
// completed any more. Frames must not be read after it.
func (e *Endpoint) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	e.mu.Unlock()
	e.cancel(os.ErrClosed)
	e.kept.Wait()
	return e.discard()
}

// discard gives back what an endpoint has, as far as it came. Nobody keeps it.
func (e *Endpoint) discard() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cancel(os.ErrClosed)
	var err error
	if s := e.sess; s != nil {
		e.base.addServer(s.counts())
		err = errors.Join(s.close(), closeNow(s.umem.Region))
		e.sess = nil
	}
	for _, f := range e.former {
		err = errors.Join(err, closeNow(f.Region))
	}
	e.former = nil
	if e.own != nil {
		err = errors.Join(err, e.own.Close())
	}
	if e.q != nil {
		err = errors.Join(err, e.q.Close())
	}
	if e.payload != nil {
		err = errors.Join(err, closeNow(e.payload))
	}
	return err
}

// closeNow unmaps a region that nobody should have loans of. One that somebody has stays mapped
// until that is over.
func closeNow(r *shm.Region) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := r.Close(ctx)
	if errors.Is(err, context.Canceled) {
		go func() { _ = r.Close(context.Background()) }()
		return nil
	}
	return err
}
