package hostile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

const (
	queueSocket = "queue-%d"
	ways        = 3 // in which queues of a victim are read, each in another one
	queueLanes  = 24
	// Between processes of one user a lane that was given up is nobody's for as long as the queue
	// lives.
	userLanes = 1000
)

// victimReader reads its queues, and does beside what it has to do with attackers.
func victimReader(c *child) error {
	return c.readQueues(func() {
		if c.s.beside != nil {
			c.manyTimes(c.s.crowd, func(rnd *rand.Rand, i int) { c.s.beside(c, rnd, i) })
		}
	})
}

// manyTimes calls f for each attacker, from so many goroutines, again and again.
func (c *child) manyTimes(each int, f func(rnd *rand.Rand, i int)) {
	var busy sync.WaitGroup
	for i := range each * attackers {
		rnd := c.split()
		busy.Go(func() {
			for c.ctx.Err() == nil {
				f(rnd, i%attackers)
			}
		})
	}
	busy.Wait()
}

// readQueues reads the queues of a victim until the run ends. more does something beside that,
// until c.ctx ends.
func (c *child) readQueues(more func()) error {
	var all []*served
	for k := range c.s.queues {
		s, err := c.serve(k)
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	time.Sleep(5 * time.Millisecond) // goroutines of the runtime begin
	before := held()
	c.ready()
	var busy sync.WaitGroup
	for _, s := range all {
		busy.Go(func() {
			for c.ctx.Err() == nil {
				s.look()
			}
		})
	}
	more()
	busy.Wait()
	lanes := func() (n int) {
		for _, s := range all {
			st := s.q.Stats()
			n += st.Lanes + int(st.GivenUp) + c.s.uncounted
		}
		return n
	}
	c.settles(before, lanes, func() {
		for _, s := range all {
			s.look()
		}
	})
	for _, s := range all {
		if err := s.close(); err != nil {
			return err
		}
	}
	return nil
}

// served is a queue of a victim, of either kind.
type served struct {
	c    *child
	q    serving
	look func() // one call of one kind, with all that is to be checked about it
	told uint64 // of lanes that were given up
	end  func() error
	l    *net.UnixListener
	over chan error
}

// serving is a queue of either kind.
type serving interface {
	Serve(*net.UnixListener, func(error)) error
	Stats() cq.Stats
	Close() error
}

// serve makes the k-th queue of a victim, and lets others attach to it.
func (c *child) serve(k int) (s *served, err error) {
	s = &served{c: c, over: make(chan error, 1)}
	if err = c.s.kind.read(s, k); err != nil {
		return nil, err
	}
	if s.l, err = wire.Listen("unix", c.path(fmt.Sprintf(queueSocket, k))); err != nil {
		return nil, err
	}
	go func() { s.over <- s.q.Serve(s.l, func(err error) { c.refusedBy("serve", err) }) }()
	return s, nil
}

// close demands an error for each lane that was given up before it ends the queue.
func (s *served) close() error {
	for range 10_000 { // what is not told yet comes with a read
		if s.told == s.q.Stats().GivenUp {
			break
		}
		s.look()
	}
	if n := s.q.Stats().GivenUp; n != s.told {
		s.c.broken(&s.c.did.Untyped, "%d lanes were given up, and %d errors said so", n, s.told)
	}
	add(&s.c.did.GivenUp, s.told)
	err := errors.Join(s.l.Close(), s.end())
	if why := <-s.over; !errors.Is(why, cq.ErrClosed) && !errors.Is(why, net.ErrClosed) {
		err = errors.Join(err, why)
	}
	return err
}

// assess counts an error of a look, which may be that of a lane that was given up.
func (s *served) assess(what string, err error) {
	s.c.assess(what, err)
	if errors.As(err, new(*cq.LaneError)) {
		s.told++
	}
}

// completionReader reads a queue in one of the ways there are.
type completionReader struct {
	*served
	k        int
	q        *cq.Queue
	set      *cq.WaitSet // of the second queue
	rnd      *rand.Rand
	verifier *verifier
	dst      [64]cq.Entry
	errData  []byte
}

func readCompletions(s *served, k int) error {
	c := s.c
	r := &completionReader{served: s, k: k, rnd: c.split(), verifier: c.verifier(),
		errData: make([]byte, 0, 1<<10)}
	o := cq.Options{Size: 64 << (2 * k), MaxLanes: queueLanes, Trust: c.s.trust, Spin: -1}
	if o.Trust == cq.CrossUser {
		o.Allow = everybody()
		if c.Spoil == spoilShut {
			o.Allow = &shm.AllowList{UIDs: []int{0, attackerUID, honestUID}}
		}
	} else {
		o.MaxLanes = userLanes
	}
	switch k {
	case 1:
		o.Shared = true
	case 2:
		o.Wait = cq.WaitFD
	}
	var err error
	if r.q, err = cq.Create(cq.Unnamed(fmt.Sprint("victim-", k)), o); err != nil {
		return err
	}
	s.q, s.look, s.end = r.q, r.look, r.q.Close
	if k == 1 {
		if r.set, err = cq.NewWaitSet(nil, cq.WaitSetOptions{}); err == nil {
			err = r.set.Add(r.q)
		}
		s.end = func() error { return errors.Join(r.set.Remove(r.q), r.set.Close(), r.q.Close()) }
	}
	return err
}

// refusedBy counts meetings that came to nothing.
func (c *child) refusedBy(what string, err error) {
	if err != nil {
		c.assess(what, err)
		add(&c.did.Refused, 1)
	}
}

// look is one call of one kind, with all that is to be checked about it.
func (s *completionReader) look() {
	before := s.q.Stats()
	defer s.c.watch("a look at a queue")()
	what, bound, err := s.call()
	after := s.q.Stats()
	s.c.steps(what, after.Sleeps-before.Sleeps+after.Barriers-before.Barriers+
		after.Resets-before.Resets, bound)
	if errors.Is(err, cq.ErrAvail) {
		e := cq.ErrorEntry{ErrData: s.errData}
		err = s.q.ReadErr(&e)
		if len(e.ErrData) > cq.ErrDataMaxBytes {
			s.c.broken(&s.c.did.Unbounded, "%d bytes of detail", len(e.ErrData))
		}
		add(&s.c.did.Foreign, 1)
	}
	s.assess(what, err)
	if s.rnd.IntN(64) == 0 {
		runtime.Gosched()
	}
}

// call says what it did, and how many system calls it may have made.
func (s *completionReader) call() (what string, bound uint64, err error) {
	bound = waitBound
	n, most := 0, 1+s.rnd.IntN(len(s.dst))
	dst := s.dst[:most]
	switch s.rnd.IntN(8) {
	case 0, 1:
		what, bound = "read", plainBound
		n, err = cq.Read(s.q, dst)
	case 2:
		what = "read with a timeout"
		n, err = cq.ReadContext(context.Background(), s.q, dst,
			cq.ReadOptions{Timeout: 2 * time.Millisecond})
	case 3:
		what = "read for a threshold"
		n, err = cq.ReadContext(context.Background(), s.q, dst,
			cq.ReadOptions{Timeout: 2 * time.Millisecond, Threshold: most})
	case 4:
		what, bound = "read with a context", contextBound
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Millisecond)
		n, err = cq.ReadContext(ctx, s.q, dst, cq.ReadOptions{})
		cancel()
	case 5:
		return "peek", plainBound, s.peek(most)
	case 6:
		return "iterate", plainBound, s.iterate(most)
	case 7:
		return "wait", bound, s.wait()
	}
	if n > len(dst) || n < 0 {
		s.c.broken(&s.c.did.Unbounded, "%s returned %d of %d", what, n, len(dst))
		n = 0
	}
	for i := range dst[:n] {
		s.verifier.take(&dst[i])
	}
	return what, bound, err
}

func (s *completionReader) peek(most int) error {
	es, err := s.q.Peek(most)
	if err != nil {
		return err
	}
	for i := range es {
		e := es[i] // it can change while it is looked at
		s.verifier.take(&e)
	}
	return s.q.Release(len(es))
}

func (s *completionReader) iterate(most int) (err error) {
	n := 0
	for p, e := range s.q.Entries(most) {
		if e != nil {
			return e
		}
		private := *p
		s.verifier.take(&private)
		if n++; n > most {
			s.c.broken(&s.c.did.Unbounded, "iterated over more than %d", most)
		}
	}
	return nil
}

// wait waits as an application does that has a loop of its own.
func (s *completionReader) wait() error {
	switch s.k {
	case 1:
		var members [4]cq.Waitable
		_, err := s.set.Wait(context.Background(), members[:],
			cq.WaitOptions{Timeout: 2 * time.Millisecond})
		return err
	case 2:
		if err := cq.TryWait(s.q); err != nil {
			return err
		}
		poll(s.q, 2)
		return nil
	}
	s.q.Options()
	return nil
}

const eventData = 500 // bytes at most, as all event queues of a run are made

func (c *child) eventOptions(size int) cq.EventOptions {
	o := cq.EventOptions{Size: size, MaxLanes: queueLanes, DataMaxBytes: eventData, Trust: c.s.trust,
		Spin: -1}
	if o.Trust == cq.CrossUser {
		o.Allow = everybody()
	}
	return o
}

// readEvents is of event queues.
func readEvents(s *served, _ int) error {
	q, err := cq.CreateEvents(cq.Unnamed("victim"), s.c.eventOptions(64))
	w, rnd := s.c.verifier(), s.c.split()
	s.q, s.look, s.end = q, func() { s.lookAtEvents(q, rnd, w) }, q.Close
	return err
}

func (s *served) lookAtEvents(q *cq.EventQueue, rnd *rand.Rand, w *verifier) {
	c := s.c
	defer c.watch("a look at an event queue")()
	before := q.Stats()
	room := make([]byte, 0, 8+rnd.IntN(eventData))
	ev := cq.Event{Payload: room}
	what, n, err, bound := "read an event", 0, error(nil), uint64(plainBound)
	if rnd.IntN(8) == 0 { // not to be confused with the read
		_, err = q.Read(&cq.Event{Payload: make([]byte, 0, 8)}, cq.FlagPeek)
		what = "peek at an event"
	} else if rnd.IntN(2) == 0 {
		n, err = q.ReadContext(context.Background(), &ev, cq.ReadOptions{Timeout: 2 * time.Millisecond})
		bound = waitBound
	} else {
		n, err = q.Read(&ev, 0)
	}
	after := q.Stats()
	c.steps(what, after.Sleeps-before.Sleeps+after.Barriers-before.Barriers, bound)
	if errors.Is(err, cq.ETooSmall) {
		ev.Payload = make([]byte, 0, eventData+256)
		n, err = q.Read(&ev, 0)
		if errors.Is(err, cq.ETooSmall) {
			c.broken(&c.did.Unbounded, "an event of more than there can be: %v", err)
			err = nil
		}
	}
	if errors.Is(err, cq.ErrAvail) {
		e := cq.EventError{ErrData: make([]byte, 0, rnd.IntN(2*eventData))}
		if _, err = q.ReadErr(&e, 0); len(e.ErrData) > eventData+256 || e.ErrDataBytes > eventData+256 {
			c.broken(&c.did.Unbounded, "%d of %d bytes of detail", len(e.ErrData), e.ErrDataBytes)
		}
		add(&c.did.Foreign, 1)
	}
	s.assess(what, err)
	if n > 0 {
		w.event(&ev)
	}
}

func honestEvent(key, who, n uint64) cq.Event {
	s := seal(key, who, n)
	return cq.Event{Event: cq.EventUser, FID: cq.FID{ID: ^s}, Context: who, Data: n,
		Payload: binary.LittleEndian.AppendUint64(nil, s)}
}

func (w *verifier) event(ev *cq.Event) {
	want := honestEvent(w.c.Key, ev.Context, ev.Data)
	if ev.Event != want.Event || ev.FID != want.FID || string(ev.Payload) != string(want.Payload) {
		add(&w.c.did.Foreign, 1)
		return
	}
	w.number(ev.Context, ev.Data)
}
