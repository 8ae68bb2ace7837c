package device

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// Request is what an application wants of a device process. Zero values stand for the defaults.
type Request struct {
	Name string // shows in the status of the device process; up to 96 bytes of ASCII
	// Ports are UDP ports to take; more can be taken and dropped later. Sends go out from the first
	// one if they do not say otherwise.
	Ports []uint16
	// Frames are how many received packets may be unread or not released at a time, and Sends how
	// many sends may be under way. Zero leaves both to the device process.
	Frames, Sends int
	// Servers lists the users who may serve the path, whose word is taken for what arrives from the
	// network. Zero stands for root and this process's own user.
	Servers []int
	// QueueOptions are those of the queue where completions come, which the endpoint makes: for
	// cq.CrossUser, allowing the Servers.
	QueueOptions cq.Options
	// Notify is called when the device process is gone, and when the endpoint has found one again,
	// from a goroutine of the endpoint. It must not call Close.
	Notify func(Event)
	// Events gets the same news as cq.EventPeerDeath, with the number of cancelled sends as Data,
	// and cq.EventConnected, with the generation of the new UMEM; both with Context. It is written
	// to by one goroutine of the endpoint, and nobody else may. An event for which it has no room
	// is lost. An event queue of this process is one that was opened with EventOptions.Write.
	Events  cq.EventSink
	Context uint64
	// Addresses is what the indices of Send and Inject are looked up in.
	Addresses *cq.AddressVector
	// WrongChecksums hands out datagrams with a wrong UDP checksum too: their Record has
	// xdp.RecordChecksumWrong. By default they are dropped and counted, as the kernel does.
	WrongChecksums bool
	// InPlace has frames lent where the kernel put them, rather than copied. That shows the process
	// all packets of the device, so it is for one process at a time, of the server's own user, at a
	// server with one queue. Others get [ErrRefused], [ErrBudget] who come second or want more than
	// half of the server's frames. Frames and Sends bound it as they do others.
	// An endpoint that such a server hangs up on, and lives on, is of no more use.
	InPlace bool
	// NoReconnect leaves it at the first device process: when it is gone the endpoint is of no more
	// use than to read what came, and to be closed.
	NoReconnect bool
}

// Event is news of an endpoint: that its device process is gone, or that it has one again.
//
// With the first, what was sent and not completed gets error completions with ECANCELED. With the
// second the memory is new; frames of the former one stay readable until they are released.
type Event struct {
	Err        error  // why the device process is gone; nil if there is one again
	Generation uint64 // of the UMEM: of the one that is lost, or of the new one
	PID        int    // of the device process that is gone, or that was found
	Cancelled  int    // sends that were answered with ECANCELED
}

// session is what an endpoint has of one device process.
type session struct {
	wire   wire // which no context ends
	peer   *place.Peer
	umem   frames
	page   *statusPage
	sq     *cq.Writer
	grant  hello
	txLane int
	// txObject is the lane itself: the row may have had another server since.
	txObject shm.UUID
	// published is how many completions of sends are known to have been published; Endpoint.mu
	// guards it.
	published uint64
	// asking lets one question be under way at a time. It is held from dial to the end of start:
	// nobody reads answers before, and the server expects the start.
	asking  sync.Mutex
	ports   []uint16 // that the hello named
	asked   bool     // a question is under way; Endpoint.mu guards it, and the next
	wanted  uint16   // port that is asked for, or 0
	answers chan hello
	over    chan struct{} // closed when the session is
	ended   chan error    // has why it ended, or did not start; the keeper's
}

func newSession(conn *net.UnixConn) *session {
	return &session{wire: meet(context.Background(), conn), answers: make(chan hello, 1),
		over: make(chan struct{}), ended: make(chan error, 1)}
}

const (
	maxGrantedFrames = 1 << 20
	maxGrantedSends  = 1 << 16
	maxSlotBytes     = 1 << 16
)

// start has packets come, and returns when they do. Whoever reads the queue must be able to find
// the session by then.
func (s *session) start(ctx context.Context) error {
	defer s.asking.Unlock()
	watch(s.peer, s.wire.Conn) // a child may hold the connection of a server that is gone
	w := meet(ctx, s.wire.Conn)
	err := w.send(hello{step: stepStart})
	crash.At(crash.AppStarting)
	if err == nil {
		_, _, err = w.receive(stepDone)
	}
	w.End()
	if err != nil {
		return lastWord(ctx, s.wire.Conn, err)
	}
	crash.At(crash.AppStarted)
	return nil
}

// dial connects and shakes hands, up to start. memory is called when the grant is known, and
// returns the descriptor of the payload memory.
func dial(ctx context.Context, path string, h hello, q *cq.Queue, allow *shm.AllowList,
	memory func(grant hello) (int, error)) (s *session, err error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixpacket", path)
	if err != nil {
		return nil, err
	}
	conn := c.(*net.UnixConn)
	s = newSession(conn)
	s.ports = h.ports
	s.asking.Lock()
	defer func() {
		if err != nil {
			err = lastWord(ctx, conn, err)
			_ = errors.Join(s.close(), closeRegion(s.umem.Region))
			s = nil
		}
	}()
	if s.peer, err = place.MeetPeer(conn, allow); err != nil {
		return s, err
	}
	w := meet(ctx, conn)
	err = w.send(h)
	crash.At(crash.AppHello)
	if err == nil {
		err = s.accept(w, h, memory)
	}
	w.End()
	if err != nil {
		return s, err
	}
	for range 2 { // the lanes of received packets and of sends
		w := meet(ctx, conn)
		err := w.objection()
		w.End()
		if err != nil {
			return s, err
		}
		if err := q.Accept(ctx, conn); err != nil {
			return s, slow(err)
		}
	}
	if s.sq, err = attachQueue(ctx, conn, allow, maxLaneBytes); err != nil {
		if errors.Is(err, cq.ErrClosed) { // a server that gives up closes it before it says why
			err = fmt.Errorf("%w: %w", cq.ErrPeerGone, err)
		}
		return s, slow(err)
	}
	w = meet(ctx, conn)
	ready, _, err := w.receive(stepReady)
	w.End()
	if err != nil {
		return s, err
	}
	s.txLane = int(ready.txLane)
	// A server that has died since may have no lane any more. Then nothing could tell later what it
	// sent: whatever stands in its row is another one's by then.
	lane, err := q.Lane(s.txLane, shm.UUID{})
	if err != nil {
		return s, fmt.Errorf("%w: %w", ErrServerGone, err)
	}
	s.txObject = lane.Object
	return s, nil
}

// accept takes the grant and sends the payload memory.
func (s *session) accept(w wire, h hello, memory func(hello) (int, error)) error {
	g, fds, err := w.receive(stepGrant)
	if err != nil {
		return err
	}
	defer shm.CloseFDs(fds)
	if g.frames == 0 || g.frames > maxGrantedFrames || g.sends == 0 || g.sends > maxGrantedSends ||
		g.slotBytes == 0 || g.slotBytes > maxSlotBytes || g.maxPayload > g.slotBytes ||
		g.inPlace != h.inPlace ||
		h.frames != 0 && g.frames != h.frames || h.sends != 0 && g.sends != h.sends {
		return fmt.Errorf("%w: a grant that makes no sense", ErrProtocol)
	}
	s.grant = g
	most := g.frames
	if g.inPlace { // these are some of all that the server has
		most = maxGrantedFrames
	}
	if s.umem, err = openFrames(fds[0], most); err != nil {
		return err
	}
	if n := s.umem.geo.Frames; n < g.frames || n > most {
		return fmt.Errorf("%w: %d frames, granted were %d", ErrProtocol, n, g.frames)
	}
	if s.page, err = openPage(fds[1], int(g.sends)); err != nil {
		return err
	}
	fd, err := memory(g)
	if err != nil {
		return err
	}
	err = w.send(hello{step: stepMemory}, fd)
	crash.At(crash.AppMemory)
	return err
}

// slow translates what a rendezvous ends with if it took too long for either side. It is one of the
// steps of a hello, and in the others the server says ErrSlow.
func slow(err error) error {
	if errors.Is(err, cq.ErrTimedOut) {
		return fmt.Errorf("%w: %w", ErrSlow, err)
	}
	return err
}

// part tells the server that this is the end, and returns when it has said so too, or is gone: from
// then on it publishes nothing more. A server that lives is done with all of its part before it
// hangs up.
func (s *session) part(ctx context.Context) {
	_ = s.wire.Conn.CloseWrite()
	w := meet(ctx, s.wire.Conn)
	defer w.End()
	for ended := false; !ended; { // what it said before
		_, err := w.next()
		ended = err != nil && !errors.Is(err, ErrProtocol) && !errors.Is(err, shm.ErrVersion) &&
			!errors.Is(err, shm.ErrTruncated)
	}
}

// close gives everything back but the UMEM, which the caller may have frames of.
func (s *session) close() error {
	close(s.over)
	s.peer.Close()
	err := hangUp(s.wire.Conn)
	if s.sq != nil {
		err = errors.Join(err, s.sq.Close())
	}
	if s.page != nil {
		err = errors.Join(err, s.page.close())
	}
	return err
}

// first makes the first session. Of processes that all start at once some are told to come again.
func (e *Endpoint) first(ctx context.Context) (*session, error) {
	for wait := firstBackoff; ; wait = min(2*wait, lastBackoff) {
		s, err := e.begin(ctx)
		// EAGAIN is also the system's, when its backlog is full.
		if !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, ErrSlow) {
			return s, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(wait):
		}
		if errors.Is(err, ErrSlow) { // the others came before any memory was made
			err = e.again()
		}
		if err != nil && !errors.Is(err, syscall.EAGAIN) {
			return nil, err
		}
	}
}

// begin makes a session and has packets come. Of one that did not start the endpoint knows.
func (e *Endpoint) begin(ctx context.Context) (*session, error) {
	s, err := e.connect(ctx, 0)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.sess = s
	e.mu.Unlock()
	if e.own == nil {
		if e.own, err = e.q.Writer(); err != nil {
			return nil, err
		}
	}
	return s, s.start(ctx)
}

// again gives back what a first session had that did not start, and makes another queue: nobody
// reads it before there is an endpoint, so that it would keep the lanes of each attempt.
func (e *Endpoint) again() error {
	e.mu.Lock()
	s := e.sess
	e.sess = nil
	e.mu.Unlock()
	var err error
	if s != nil {
		err = errors.Join(s.close(), closeNow(s.umem.Region))
	}
	if e.own != nil {
		err = errors.Join(err, e.own.Close())
		e.own = nil
	}
	err = errors.Join(err, e.q.Close())
	q, made := newCompletions(e.queueOptions(), e.servers())
	e.q = q
	return errors.Join(err, made)
}

// connect makes a session. generation is that of the last UMEM.
func (e *Endpoint) connect(ctx context.Context, generation uint64) (*session, error) {
	h := hello{step: stepHello, frames: uint32(e.req.Frames), sends: uint32(e.req.Sends),
		generation: generation, ports: e.takenPorts(), text: printable(e.req.Name),
		wrongSums: e.req.WrongChecksums, inPlace: e.req.InPlace}
	s, err := dial(ctx, e.path, h, e.q, e.servers(), e.prepare)
	if err == nil && e.has(s.umem) {
		_ = errors.Join(s.close(), closeRegion(s.umem.Region))
		return nil, errSameFrames
	}
	return s, err
}

// errSameFrames: what the user returns of a former session could name a loan of this one.
var errSameFrames = fmt.Errorf("%w: it hung up on this endpoint and lives on", ErrServerGone)

// has reports whether frames of this memory may be in the user's hands.
func (e *Endpoint) has(umem frames) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.former, func(f frames) bool {
		return f.Object().Header().UUID == umem.Object().Header().UUID
	})
}

// prepare makes the payload memory that fits a grant, unless there is one already.
func (e *Endpoint) prepare(g hello) (fd int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := int(g.sends) * int(g.slotBytes)
	if e.payload == nil || len(e.payload.Bytes()) != n || len(e.slots) != int(g.sends) {
		r, err := newPayload(int(g.sends), int(g.slotBytes))
		if err != nil {
			return -1, err
		}
		if e.payload != nil {
			_ = closeRegion(e.payload)
		}
		e.payload, e.slots, e.next = r, make([]sendSlot, g.sends), 0
	}
	return e.payload.Object().FD(), nil
}
