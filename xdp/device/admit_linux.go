package device

import (
	"context"
	"errors"
	"fmt"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// admit is everything from hello to start. On error a is to be closed.
func (s *Server) admit(ctx context.Context, a *app) error {
	w := meet(ctx, a.conn)
	h, _, err := w.receive(stepHello)
	if err == nil {
		err = s.grant(a, h)
	}
	if err == nil {
		crash.At(crash.DevBooked)
		g := hello{step: stepGrant, frames: uint32(a.pool.limit), sends: uint32(a.limit),
			generation: a.generation, maxPayload: uint32(s.maxPayload),
			slotBytes: uint32(s.slotBytes), inPlace: a.inPlace}
		err = a.sendGrant(w, g)
		crash.At(crash.DevGranted)
	}
	var fds []int
	if err == nil {
		_, fds, err = w.receive(stepMemory)
	}
	if err == nil {
		a.payload, err = openPayload(fds[0], a.limit, s.slotBytes)
		shm.CloseFDs(fds)
	}
	w.End()
	if err == nil {
		err = s.join(ctx, a)
	}
	if err != nil {
		return err
	}
	crash.At(crash.DevJoined)
	w = meet(ctx, a.conn)
	err = w.send(hello{step: stepReady, rxLane: uint32(a.rx.Lane()), txLane: uint32(a.tx.Lane())})
	if err == nil { // a packet that came before would find an application that does not know of us
		_, _, err = w.receive(stepStart)
	}
	w.End()
	if err == nil && !s.own(a, true) {
		err = errClosing
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.apps[a] = struct{}{}
	s.admitted++
	s.mu.Unlock()
	crash.At(crash.DevAttached)
	_ = w.send(hello{step: stepDone}) // an error shows when the connection is read
	return nil
}

// sendGrant sends the grant with the descriptors of what is made for the application, for reading.
func (a *app) sendGrant(w wire, g hello) error {
	var fds [2]int
	var err error
	if fds[0], err = a.umem.Region().Object().ShareFD(); err != nil {
		return err
	}
	defer shm.CloseFDs(fds[:1])
	if fds[1], err = a.page.obj.ShareFD(); err != nil {
		return err
	}
	defer shm.CloseFDs(fds[1:])
	return w.send(g, fds[:]...)
}

// grant books what the application wants and makes its memory.
func (s *Server) grant(a *app, h hello) error {
	frames, sends := int(h.frames), int(h.sends)
	s.mu.Lock()
	if frames == 0 {
		frames = min(defaultAppFrames, max(1, a.account.Frames-a.account.frames))
		if h.inPlace {
			frames = min(frames, s.lendable())
		}
	}
	if sends == 0 {
		sends = min(defaultAppSends, max(1, a.account.Sends-a.account.sends))
	}
	err := a.account.book(frames, sends, 0)
	s.last++
	generation := s.last
	s.mu.Unlock()
	if h.generation < 1<<62 { // a sane one, so the new one is not one of before
		generation = max(generation, h.generation+1)
	}
	if err != nil {
		return err
	}
	a.name, a.limit, a.slot = h.text, sends, uint64(s.slotBytes)
	a.generation = generation
	a.wrongSums = h.wrongSums
	a.pool = &pool{limit: frames}
	a.batch = make([]int32, 0, s.c.RxBatch)
	if h.inPlace {
		err = s.admitReader(a)
	} else {
		a.pool = newPool(frames)
		a.umem, err = xdp.NewUMEM(xdp.UMEMOptions{Name: "app", Frames: uint32(frames),
			Generation: generation})
	}
	if err != nil {
		return err
	}
	a.geo = a.umem.Geometry()
	if a.page, err = newPage(frames, sends, generation); err != nil {
		return err
	}
	// Now, while a no can still be said in this protocol.
	if a.q, err = newCommands(frames+sends+s.c.TxBatch, a.allow); err != nil {
		return err
	}
	return s.takePorts(a, h.ports)
}

const (
	defaultAppFrames = 256
	defaultAppSends  = 64
)

// join attaches to the application's queue, and lets it attach to its command queue.
func (s *Server) join(ctx context.Context, a *app) (err error) {
	for _, w := range []**cq.Writer{&a.rx, &a.tx} {
		if *w, err = s.attachTo(ctx, a); err != nil {
			return err
		}
	}
	return a.q.Accept(ctx, a.conn)
}

// attachTo attaches to the application's queue with what its budget has left. The size is known
// only then; of several at once the last to know finds nothing left.
func (s *Server) attachTo(ctx context.Context, a *app) (*cq.Writer, error) {
	s.mu.Lock()
	room := a.account.room()
	s.mu.Unlock()
	if room == 0 {
		return nil, fmt.Errorf("%w: memory", ErrBudget)
	}
	w, err := attachQueue(ctx, a.conn, a.allow, min(room, maxLaneBytes))
	if errors.Is(err, shm.ErrNoSpace) && room < maxLaneBytes {
		err = fmt.Errorf("%w: %w", ErrBudget, err)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.Stats().Bytes > a.account.room() {
		return nil, errors.Join(fmt.Errorf("%w: memory", ErrBudget), w.Close())
	}
	a.account.lanes += w.Stats().Bytes
	a.lanes += w.Stats().Bytes
	return w, nil
}
