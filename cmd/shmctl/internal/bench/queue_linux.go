package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
)

// queues is what the cq commands of one process use. The directory is that of its side.
type queues struct {
	dir     *shm.Dir
	own     *cq.Queue
	out     *cq.Writer // to the own queue, or to the other role's
	events  *cq.EventQueue
	counter *cq.Counter
	total   uint64 // that the counter has, as far as we added
	epoll   bool   // the user waits on the descriptor
	sent    uint64
	got     uint64
}

// queueBlock is how many entries are queued at once before they are read, as in libfabric.c.
const queueBlock = 512

// openQueues makes what the commands of a row need.
func (p *party) openQueues(c command) (*queues, error) {
	return have(p, func() (*queues, error) {
		s := &queues{}
		err := s.open(p.role, c)
		if err != nil {
			_ = s.Close()
		}
		return s, err
	})
}

func (s *queues) open(role int, c command) (err error) {
	if s.dir, err = shm.OpenDir(""); err != nil {
		return err
	}
	o, err := c.queueOptions()
	if err != nil {
		return err
	}
	s.epoll = o.Wait == cq.WaitFD
	name := func(role int) string { return fmt.Sprintf("role%d", role) }
	if c.verb == "eq" {
		s.events, err = cq.CreateEvents(cq.Named(s.dir, name(role)), cq.EventOptions{Write: true})
		return err
	}
	if strings.HasPrefix(c.verb, "cntr") {
		s.counter, err = cq.CreateCounter(cq.Named(s.dir, name(role)), cq.CounterOptions{})
		return err
	}
	if s.own, err = cq.Create(cq.Named(s.dir, name(role)), o); err != nil || c.verb == "read-bare" {
		return err
	}
	to := name(role)
	if queueVerbs[c.verb].solo == nil {
		to = name(1 - role)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if s.out, err = cq.Attach(ctx, cq.Named(s.dir, to), cq.WriterOptions{Wait: true}); err != nil {
		return err
	}
	// The first read finds the lane; the other process attaches whenever it likes.
	_, err = cq.Read(s.own, make([]cq.Tagged, 1))
	if errors.Is(err, cq.ErrWouldBlock) {
		err = nil
	}
	return err
}

func (s *queues) Close() error {
	closeAll(s.out, s.own, s.events, s.counter, s.dir)
	return nil
}

// closeAll closes what is there: pointers of what was not made are nil.
func closeAll(all ...io.Closer) {
	for _, c := range all {
		if !reflect.ValueOf(c).IsNil() {
			_ = c.Close()
		}
	}
}

// queueOptions are those of the queues of a command.
func (c command) queueOptions() (o cq.Options, err error) {
	switch c.option {
	case "", "heap":
	case "shared":
		o.Shared = true
	case "none":
		o.Wait = cq.WaitNone
	case "fd":
		o.Wait = cq.WaitFD
	case "yield":
		o.Wait = cq.WaitYield
	default:
		err = fmt.Errorf("no such option: %q: %w", c.option, unix.EINVAL)
	}
	if c.verb == "sread" {
		o.Spin = -1 // it is about sleeping
	}
	return o, err
}

// queueVerb is what the processes do with their queues by a command, a round. Of solo ones role 0
// does it alone and says what it took; of others it is measured by the role that counts.
type queueVerb struct {
	solo   func(s *queues, c command, n int) (time.Duration, error)
	both   func(s *queues, role int, c command) error
	counts int
}

var queueVerbs = map[string]queueVerb{
	"read-bare": {solo: (*queues).readEmpty}, "read-empty": {solo: (*queues).readEmpty},
	"read": {solo: (*queues).readFull}, "eq": {solo: (*queues).writeRead},
	"cntr-add": {solo: (*queues).counterAdd}, "cntr-read": {solo: (*queues).counterRead},
	"post-read": {solo: (*queues).postRead}, "rate": {both: (*queues).rate, counts: 1},
	"trip": {both: (*queues).trip}, "sread": {both: (*queues).blocked},
}

func (p *party) queueRunner(c command) (func() (uint64, bool, error), error) {
	s, err := p.openQueues(c)
	if err != nil {
		return nil, err
	}
	v, known := queueVerbs[c.verb]
	switch {
	case !known:
		return nil, fmt.Errorf("no such command: %w", unix.EINVAL)
	case v.solo == nil:
		return func() (uint64, bool, error) { return 0, p.role == v.counts, v.both(s, p.role, c) }, nil
	}
	return p.solo(func() (time.Duration, error) { return v.solo(s, c, int(c.count)) }), nil
}

// What the processes do with their queues, word for word that of testdata/rivals/libfabric.c as far
// as that has it.

func (s *queues) readEmpty(_ command, n int) (time.Duration, error) {
	buf := make([]cq.Tagged, 1)
	began := time.Now()
	for range n {
		if _, err := cq.Read(s.own, buf); err != cq.ErrWouldBlock {
			return 0, fmt.Errorf("a read of an empty queue returned %v", err)
		}
	}
	return time.Since(began), nil
}

// readFull times the reads of entries that were queued before, and nothing else.
func (s *queues) readFull(c command, n int) (took time.Duration, err error) {
	entries, buf := make([]cq.Entry, queueBlock), make([]cq.Tagged, c.batch)
	for i := range entries {
		entries[i] = cq.Entry{Flags: cq.FlagRecv | cq.FlagTagged, Len: 8}
	}
	for n > 0 {
		block := min(n, queueBlock)
		for at := 0; at < block; {
			k, err := s.out.PostBatch(entries[at:min(block, at+c.batch)])
			if err != nil {
				return 0, err
			}
			at += k
		}
		began := time.Now()
		for seen := 0; seen < block; {
			k, err := cq.Read(s.own, buf[:min(c.batch, block-seen)])
			if err != nil {
				return 0, err
			}
			seen += k
		}
		took += time.Since(began)
		n -= block
	}
	return took, nil
}

func (s *queues) writeRead(_ command, n int) (time.Duration, error) {
	in, out := cq.Event{Event: cq.EventNotify, Context: 1, Data: 1}, cq.Event{}
	began := time.Now()
	for range n {
		if _, err := s.events.Write(&in); err != nil {
			return 0, err
		}
		if _, err := s.events.Read(&out, 0); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

func (s *queues) counterAdd(_ command, n int) (time.Duration, error) {
	began := time.Now()
	if err := addTo(s.counter, n); err != nil {
		return 0, err
	}
	took := time.Since(began)
	s.total += uint64(n)
	if v, err := s.counter.Read(); err != nil || v != s.total {
		return 0, fmt.Errorf("the counter is %d, not %d (%v)", v, s.total, err)
	}
	return took, nil
}

// addTo is the loop alone. An addition waits for every store before it: with more that lives across
// the calls it took a third longer, or not, by where the stack happened to lie.
func addTo(c *cq.Counter, n int) error {
	for range n {
		if err := c.Add(1); err != nil {
			return err
		}
	}
	return nil
}

func (s *queues) counterRead(_ command, n int) (time.Duration, error) {
	var sum uint64
	began := time.Now()
	for range n {
		v, err := s.counter.Read()
		if err != nil {
			return 0, err
		}
		sum += v
	}
	took := time.Since(began)
	if sum != uint64(n)*s.total {
		return 0, fmt.Errorf("the counter was not %d in every read", s.total)
	}
	return took, nil
}

func (s *queues) postRead(_ command, n int) (time.Duration, error) {
	e, buf := cq.Entry{Flags: cq.FlagSend | cq.FlagMsg}, make([]cq.Tagged, 1)
	began := time.Now()
	for range n {
		if err := s.out.Post(&e); err != nil {
			return 0, err
		}
		if _, err := cq.Read(s.own, buf); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

// send posts n entries, numbered on and on, batch at a time.
func (s *queues) send(batch []cq.Entry, n int, pauses uint32) error {
	for n > 0 {
		es := batch[:min(n, len(batch))]
		for i := range es {
			es[i] = cq.Entry{Context: s.sent + uint64(i), Flags: cq.FlagRecv | cq.FlagTagged, Len: 8}
		}
		k, err := s.post(es)
		if err == cq.ErrFull {
			spin.Pause(pauses)
			continue
		}
		if err != nil {
			return err
		}
		s.sent += uint64(k)
		n -= k
	}
	return nil
}

// post is the call that one would use: there is one for a single entry.
func (s *queues) post(es []cq.Entry) (int, error) {
	if len(es) > 1 {
		return s.out.PostBatch(es)
	}
	return 1, s.out.Post(&es[0])
}

// receive reads n entries, up to len(buf) at a time, and checks that none is missing.
func (s *queues) receive(buf []cq.Tagged, n int, pauses uint32) error {
	for n > 0 {
		k, err := cq.Read(s.own, buf[:min(n, len(buf))])
		if err == cq.ErrWouldBlock {
			spin.Pause(pauses)
			continue
		}
		if err != nil {
			return err
		}
		if err := s.check(buf[:k]); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

func (s *queues) check(got []cq.Tagged) error {
	for i := range got {
		if got[i].Context != s.got {
			return fmt.Errorf("entry %d came, expected %d", got[i].Context, s.got)
		}
		s.got++
	}
	return nil
}

func (s *queues) rate(role int, c command) error {
	if role == 0 {
		return s.send(make([]cq.Entry, c.batch), int(c.count), c.pauses)
	}
	return s.receive(make([]cq.Tagged, c.batch), int(c.count), c.pauses)
}

func (s *queues) trip(role int, c command) error {
	return s.pingpong(role, c, make([]cq.Entry, c.batch), make([]cq.Tagged, c.batch))
}

func (s *queues) pingpong(role int, c command, out []cq.Entry, in []cq.Tagged) error {
	for range c.count {
		for turn := range 2 {
			var err error
			if turn == role {
				err = s.send(out, c.batch, c.pauses)
			} else {
				err = s.receive(in, c.batch, c.pauses)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// blocked is a round trip in which each message finds its reader asleep.
func (s *queues) blocked(role int, c command) error {
	out, in := make([]cq.Entry, 1), make([]cq.Tagged, 1)
	return inTurns(role, c.count, func() error {
		spinFor(thinkNs)
		return s.send(out, 1, 0)
	}, func() error {
		k, err := s.await(in)
		if err != nil {
			return err
		}
		return s.check(in[:k])
	})
}

// await is a blocking read, or what stands for it around a descriptor.
func (s *queues) await(buf []cq.Tagged) (int, error) {
	for {
		if !s.epoll {
			return cq.ReadContext(context.Background(), s.own, buf, cq.ReadOptions{})
		}
		switch n, err := cq.Read(s.own, buf); {
		case err != cq.ErrWouldBlock:
			return n, err
		}
		if err := s.own.TryWait(); errors.Is(err, cq.ErrWouldBlock) {
			continue
		} else if err != nil {
			return 0, err
		}
		wait, err := s.own.GetWait()
		if err != nil {
			return 0, err
		}
		var events [1]unix.EpollEvent
		if _, err := unix.EpollWait(wait.FD, events[:], -1); err != nil && err != unix.EINTR {
			return 0, err
		}
	}
}

// inTurns has both roles send and receive in turns, role 0 first. Where a turn takes less than a
// microsecond loops of their own call nothing between.
func inTurns(role int, count uint64, send, receive func() error) error {
	moves := [2]func() error{receive, receive}
	moves[role] = send
	for range count {
		for _, move := range moves {
			if err := move(); err != nil {
				return err
			}
		}
	}
	return nil
}

// soloDone is what role 0 says when role 1 may stop sleeping, as in libfabric.c.
const soloDone = 3

// solo is a round that role 0 does alone, and times itself. Role 1 leaves its processor, which may
// share a core with the other.
func (p *party) solo(do func() (time.Duration, error)) func() (uint64, bool, error) {
	if p.role == 1 {
		return p.sleepOut
	}
	return func() (_ uint64, _ bool, err error) {
		p.took, err = do()
		p.done.Store(soloDone)
		return 0, true, err
	}
}

// sleepOut is role 1's part of it.
func (p *party) sleepOut() (uint64, bool, error) {
	pause := unix.Timespec{Nsec: 100_000}
	for p.done.Load() != soloDone {
		_ = unix.Nanosleep(&pause, nil)
	}
	return 0, false, nil
}
