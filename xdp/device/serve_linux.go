package device

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// Serve admits applications that connect to l, a seqpacket socket, until the context or the server
// ends, and returns why. The listener stays the caller's, without a deadline.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	const op = "serve"
	until, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.engine.ended:
			cancel()
		case <-until.Done():
		}
	}()
	for {
		conn, err := place.Accept(until, l, func(err error) {
			s.report(failed(op, s.c.Interface, err, hintOf(err)))
		})
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case s.Err() != nil:
			return failed(op, s.c.Interface, s.Err(), "")
		default:
			if until.Err() != nil {
				err = errClosing
			}
			return failed(op, s.c.Interface, err, "")
		}
		s.handle(ctx, conn)
	}
}

// handle serves one connection in a goroutine of its own. Whoever is not on the allow-list costs
// nothing but that.
func (s *Server) handle(ctx context.Context, conn *net.UnixConn) {
	a := &app{conn: conn, owns: map[uint16]bool{}, routes: map[target]*route{}}
	if err := s.enter(a); err != nil {
		s.refuse(conn, err)
		return
	}
	go func() {
		defer s.all.Done()
		hello, cancel := context.WithTimeout(ctx, time.Duration(s.helloTimeoutNs.Load()))
		err := s.admit(hello, a)
		switch {
		case err == nil:
		case s.closes(ctx):
			err = errClosing // which ends the reading of what the application says
		case hello.Err() != nil:
			err = fmt.Errorf("%w: %w", ErrSlow, err)
		}
		cancel()
		s.met(a)
		if err != nil {
			_ = a.close(s)
			s.leave(a) // before the no, so that who gets it finds everything free
			s.refuse(conn, err)
			return
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.CloseRead() })
		defer stop()
		err = s.attend(a)
		s.leave(a)
		s.dismiss(ctx, conn, err)
	}()
}

func (s *Server) refuse(conn *net.UnixConn, err error) {
	s.mu.Lock()
	s.refused++
	s.mu.Unlock()
	// A rendezvous that ran out of time ends what the application can say, which looks like its end.
	if !hungUp(err) || errors.Is(err, ErrSlow) {
		refuse(conn, err)
	}
	_ = hangUp(conn)
	s.report(failed("admit application", s.c.Interface, err, hintOf(err)))
}

// refuse says no.
func refuse(conn *net.UnixConn, why error) {
	no := refusal(stepGrant, why)
	_ = meet(context.Background(), conn).SendNow(no.encode())
}

// closes reports that the server ends: by Close, by the context that it serves in, or with its
// device.
func (s *Server) closes(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	case <-s.engine.ended:
		return true
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// dismiss hangs up on an application that was served, and says why if it is still there.
func (s *Server) dismiss(ctx context.Context, conn *net.UnixConn, why error) {
	switch {
	case why != nil:
		refuse(conn, why)
	case s.closes(ctx):
		refuse(conn, ErrClosing)
	}
	_ = hangUp(conn)
	s.report(why)
}

// enter finds the line of the allow-list for a connection, and a place.
func (s *Server) enter(a *app) error {
	peer, err := place.MeetPeer(a.conn, &s.allow)
	if errors.Is(err, shm.ErrOwner) {
		return fmt.Errorf("%w: this user is not on the allow-list", ErrRefused)
	}
	if err != nil {
		return err
	}
	a.peer, a.allow = peer, &shm.AllowList{UIDs: []int{peer.UID}}
	if err := s.seat(a); err != nil {
		peer.Close()
		return err
	}
	return nil
}

func (s *Server) seat(a *app) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.accounts, func(c *account) bool {
		one := c.list()
		return place.Allows(&one, a.peer.UID, a.peer.GID, a.peer.Groups)
	})
	switch {
	case s.closed:
		return errClosing
	case s.places >= s.c.MaxApps || s.accounts[i].apps >= s.accounts[i].Apps:
		return fmt.Errorf("%w: too many applications", ErrBudget)
	case s.meetings[a.peer.UID] >= s.accounts[i].meetings(s.c.MaxApps):
		return ErrBusy
	}
	a.account = s.accounts[i]
	a.account.apps++
	s.places++
	s.meetings[a.peer.UID]++
	s.conns[a.conn] = struct{}{}
	s.all.Add(1)
	return nil
}

// met ends the meeting with an application, whatever came of it.
func (s *Server) met(a *app) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meetings[a.peer.UID]--; s.meetings[a.peer.UID] == 0 {
		delete(s.meetings, a.peer.UID)
	}
}

// leave gives the place of a connection back, when everything else is: who does not see the
// application in Stats any more finds that free.
func (s *Server) leave(a *app) {
	a.peer.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.apps, a)
	a.account.apps--
	s.places--
	delete(s.conns, a.conn)
}

// attend answers an application that was admitted until it is gone, and takes everything back then.
func (s *Server) attend(a *app) error {
	watch(a.peer, a.conn)
	w := meet(context.Background(), a.conn)
	var why error
	for {
		h, err := w.next()
		if err != nil {
			why = err
			break
		}
		answer := hello{step: stepDone}
		switch {
		case len(h.ports) != 1:
			err = fmt.Errorf("%w: one port is to be named", ErrProtocol)
		case h.step == stepTake:
			err = s.takePort(a, h.ports[0])
		case h.step == stepDrop:
			err = s.dropPort(a, h.ports[0])
		default:
			err = h.expect(stepTake)
		}
		if err == nil && !s.own(a, false) {
			why = errClosing
			break
		}
		if errors.Is(err, ErrProtocol) {
			why = err // which is said when everything is given back
			break
		}
		if err != nil {
			answer = refusal(stepDone, err)
		}
		crash.At(crash.DevOwned)
		// Whoever asks and does not read must not keep the server from closing.
		soon, cancel := context.WithTimeout(context.Background(), answerTimeout)
		why = w.sendSoon(soon, answer)
		cancel()
		if why != nil {
			break
		}
	}
	dead := s.detach(a)
	crash.At(crash.DevForgotten)
	if err := a.close(s); err != nil {
		s.report(failed("give back", a.name, err, ""))
	}
	switch {
	case dead != nil:
		return failed("serve application", a.name, dead, "")
	case hungUp(why), errors.Is(why, errClosing):
		return nil
	}
	return failed("serve application", a.name, why, "")
}

// detach takes an application out of the engine.
func (s *Server) detach(a *app) (dead error) {
	if !s.engine.do(func() { s.engine.detach(a) }) {
		s.mu.Lock() // so that nobody else does: the engine has ended
		s.engine.detach(a)
		s.mu.Unlock()
	}
	if errors.Is(a.dead, cq.ErrClosed) || errors.Is(a.dead, cq.ErrPeerGone) {
		return nil // the application left, or died, while it was served
	}
	return a.dead
}

// close gives back what an application had, as far as it came. The engine does not know it any
// more, or never did.
func (a *app) close(s *Server) error {
	var err error
	s.mu.Lock()
	ports := slices.Clone(a.ports)
	s.mu.Unlock()
	for _, port := range ports {
		err = errors.Join(err, s.dropPort(a, port))
	}
	crash.At(crash.DevUnported)
	if a.pool != nil {
		s.mu.Lock()
		a.account.unbook(a.pool.limit, a.limit, 0)
		a.account.lanes -= a.lanes
		s.mu.Unlock()
	}
	crash.At(crash.DevUnbooked)
	if a.q != nil {
		if len(a.pending) > 0 {
			_ = a.q.Release(len(a.pending))
		}
		err = errors.Join(err, a.q.Close())
	}
	for _, w := range []*cq.Writer{a.rx, a.tx} {
		if w != nil {
			err = errors.Join(err, w.Close())
		}
	}
	err = errors.Join(err, closeRegion(a.payload))
	if a.page != nil {
		err = errors.Join(err, a.page.close())
	}
	if a.umem != nil && !a.inPlace {
		err = errors.Join(err, a.umem.Close(context.Background()))
	}
	s.forgetReader(a)
	crash.At(crash.DevFreed)
	return err
}

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
