package device

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// What tests do that an endpoint does not.

// Submit posts any entry as a command.
func (e *Endpoint) Submit(c cq.Entry) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sess == nil {
		return ErrServerGone
	}
	return e.sess.sq.Post(&c)
}

// Regions returns the numbers of the UMEM and of the payload memory.
func (e *Endpoint) Regions() (umem, payload uint16) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sess.umem.ID(), e.payload.ID()
}

// Hold stops the goroutine that moves packets, until it is told to resume.
func (s *Server) Hold() (resume func()) {
	held, end := make(chan struct{}), make(chan struct{})
	go s.engine.do(func() { close(held); <-end })
	<-held
	return func() { close(end) }
}

// ReturnOf is the command that gives the frame of a completion back.
func ReturnOf(e *cq.Entry) cq.Entry { return returnCommand(e) }

// UMEMOf returns what a server receives into.
func UMEMOf(s *Server) *xdp.UMEM { return s.engine.queues[0].umem }

// ProgramOf returns the program that steers for a server.
func ProgramOf(s *Server) *xdp.Program { return s.program }

// HasLocal reports whether both the server and its program know that an address, or a group, is
// the interface's own.
func HasLocal(s *Server, a netip.Addr) bool {
	_, ok := (*s.engine.local.Load())[a]
	return ok
}

// Hello is the message that an application begins with, and Memory the one that brings its payload
// memory.
func Hello(ports ...uint16) []byte { return (&hello{step: stepHello, ports: ports}).encode() }
func Memory() []byte               { return (&hello{step: stepMemory}).encode() }
func Start() []byte                { return (&hello{step: stepStart}).encode() }
func Take(port uint16) []byte {
	return (&hello{step: stepTake, ports: []uint16{port}}).encode()
}

// Granted returns what a grant says of the payload memory.
func Granted(b []byte) (sends, slotBytes int, err error) {
	h, err := decodeHello(b)
	return int(h.sends), int(h.slotBytes), err
}

func NewPayload(slots, slotBytes int) (*shm.Region, error) { return newPayload(slots, slotBytes) }

// AskEarly makes one more session, and asks it for a port while it is not started.
func (e *Endpoint) AskEarly(ctx context.Context, port uint16) error {
	s, err := e.connect(ctx, e.Info().Generation)
	if err != nil {
		return err
	}
	var reader sync.WaitGroup
	defer func() {
		_ = errors.Join(s.close(), closeNow(s.umem.Region))
		reader.Wait()
	}()
	asked := make(chan error, 1)
	go func() { asked <- e.question(s, stepTake, port) }()
	select {
	case <-asked:
		return ErrProtocol
	case <-time.After(50 * time.Millisecond): // enough to do it wrong
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	reader.Go(func() { _ = e.listen(s) })
	select {
	case err := <-asked:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// LaneBytes returns how much memory is booked for queues of applications.
func (s *Server) LaneBytes() (n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.accounts {
		n += c.lanes
	}
	return n
}

// Places returns how many connections have a place.
func (s *Server) Places() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.places
}

// Unreadable makes the payload memory of the application that has a port unreadable for the server,
// as a page that the machine has lost is.
func (s *Server) Unreadable(port uint16) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	mem := s.ports[port].payload.Object().Bytes()
	return unix.Mprotect(mem, unix.PROT_NONE)
}

// Done is the answer of a server to a question, and IsDone recognises it.
func Done() []byte { return (&hello{step: stepDone}).encode() }
func IsDone(b []byte) bool {
	h, err := decodeHello(b)
	return err == nil && h.step == stepDone
}

// SetHelloWait changes how long servers may take to start.
func SetHelloWait(d time.Duration) (undo func()) {
	before := helloWait
	helloWait = d
	return func() { helloWait = before }
}

// SetHelloTimeout changes how long applications may take to start.
func (s *Server) SetHelloTimeout(d time.Duration) { s.helloTimeoutNs.Store(int64(d)) }

// SetParked changes how long a datagram waits for the address of its destination.
func (s *Server) SetParked(d time.Duration) { s.parkedNs.Store(int64(d)) }

// Late makes one more session that goes on late, after one of the steps, and returns what it ends
// with.
func (e *Endpoint) Late(ctx context.Context, memory, start func()) error {
	s, err := dial(ctx, e.path, hello{step: stepHello}, e.q, e.servers(),
		func(hello) (int, error) {
			memory()
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.payload.Object().FD(), nil
		})
	if err != nil {
		return err
	}
	start()
	err = s.start(ctx)
	return errors.Join(err, s.close(), closeNow(s.umem.Region))
}

// TooLate meets an application up to its start, and refuses it for being late then.
func (s *Server) TooLate(ctx context.Context, conn *net.UnixConn) error {
	a := &app{conn: conn, owns: map[uint16]bool{}, routes: map[target]*route{}}
	if err := s.enter(a); err != nil {
		return errors.Join(err, conn.Close())
	}
	defer s.all.Done()
	w := meet(ctx, conn)
	h, _, err := w.receive(stepHello)
	if err == nil {
		err = s.grant(a, h)
	}
	if err == nil {
		err = a.sendGrant(w, hello{step: stepGrant, frames: uint32(a.pool.limit),
			sends: uint32(a.limit), maxPayload: uint32(s.maxPayload), slotBytes: uint32(s.slotBytes),
			generation: a.generation})
	}
	if err == nil {
		var fds []int
		_, fds, err = w.receive(stepMemory)
		shm.CloseFDs(fds)
	}
	w.End()
	if err == nil {
		err = s.join(ctx, a)
	}
	if err == nil {
		err = conn.CloseRead()
	}
	if err == nil {
		w = meet(ctx, conn)
		defer w.End()
		err = w.send(hello{step: stepReady, rxLane: uint32(a.rx.Lane()), txLane: uint32(a.tx.Lane())})
	}
	s.met(a)
	err = errors.Join(err, a.close(s))
	s.leave(a)
	refuse(conn, ErrSlow)
	return errors.Join(err, hangUp(conn))
}

// Refused is the no in a message.
func Refused(b []byte) error {
	h, err := decodeHello(b)
	if err == nil {
		err = h.expect(h.step)
	}
	return err
}
