package udp

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// shard is one backend and who may use it: a queue of the interface.
type shard struct {
	stack   *Stack
	writers atomic.Int32 // in send

	mu     sync.Mutex // before a connection's
	b      backend
	closed bool
	batch  [64]datagram
	back   []datagram // of batch, those that nobody takes
	loan   [1]datagram
	held   int      // loans that wait for readers
	last   struct { // where the datagram before this one went
		to    netip.AddrPort
		table *table
		conn  *Conn
	}
}

// progress hands out what has come. It reports whether there was anything. The lock is held.
func (s *shard) progress() (bool, error) {
	if s.closed {
		return false, os.ErrClosed
	}
	n, err := s.b.Receive(s.batch[:])
	s.back = s.back[:0]
	frames := s.b.Frames()
	for i := range s.batch[:n] {
		d := &s.batch[i]
		if c := s.find(d.To); c != nil && c.deliver(d, s, s.held >= frames) {
			s.held++
		} else {
			s.back = append(s.back, *d)
		}
		d.Payload = nil
	}
	if len(s.back) > 0 {
		if e := s.b.Release(s.back); err == nil {
			err = e
		}
	}
	return n > 0, err
}

// find returns the connection that a datagram is for. Datagrams come in runs.
func (s *shard) find(to netip.AddrPort) *Conn {
	t := s.stack.table.Load()
	if s.last.table == t && s.last.to == to {
		return s.last.conn
	}
	c := t.find(to)
	s.last.to, s.last.table, s.last.conn = to, t, c
	return c
}

// release gives a loan back.
func (s *shard) release(d *datagram) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		d.View.Release() // the memory is unmapped when the last one is
		return
	}
	s.held--
	s.loan[0] = *d
	if err := s.b.Release(s.loan[:]); err != nil {
		s.stack.fail(err)
	}
}

// send sends one datagram. Of writers that come at once the last one shows the device what all of
// them have sent, which is one system call instead of many.
func (s *shard) send(b []byte, from, to netip.AddrPort) error {
	s.writers.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.writers.Add(-1) == 0
	if s.closed {
		return os.ErrClosed
	}
	err := s.post(b, from, to)
	if !last && err == nil {
		return nil // who comes next flushes
	}
	if !s.b.Flush() {
		s.stack.later.Want()
	}
	return err
}

// post gives the backend one datagram. The lock is held.
func (s *shard) post(b []byte, from, to netip.AddrPort) error {
	if len(b) > s.b.MaxPayload(to.Addr()) {
		return xdp.ErrTooBig
	}
	if s.stack.waiting.Load() > 0 && s.stack.retry(s, to.Addr()) {
		return packet.ErrResolving
	}
	return s.b.Send(b, from, to)
}

// run keeps handing out what comes while nobody else does, until the stack is closed.
func (s *shard) run() {
	err := s.b.Wait(func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for {
			worked, err := s.progress()
			if !worked && err == nil {
				worked, err = s.b.Arm()
			}
			if err != nil {
				s.gone(err)
				return true
			}
			if !worked {
				return s.closed
			}
		}
	})
	if err != nil {
		s.gone(err)
	}
}

func (s *shard) gone(err error) {
	if !errors.Is(err, os.ErrClosed) || !s.stack.isClosed() {
		s.stack.fail(err)
	}
}

// close ends the backend. Nobody uses it any more once the lock was held.
func (s *shard) close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return s.b.Close()
}

// backend carries the datagrams of a [Stack]: an endpoint on a queue of the interface, or what
// stands for one. The stack calls its methods one at a time, but for Wait, which one goroutine of
// the stack is in nearly always, and Close, which comes last and ends Wait.
type backend interface {
	// Receive moves what can be moved without waiting, and lends up to len(dst) datagrams.
	Receive(dst []datagram) (int, error)
	// Frames is how many datagrams may be lent at a time while enough is left to receive into.
	Frames() int
	// Release gives loans back, in any order.
	Release(loans []datagram) error
	// MaxPayload is the longest payload that may go to an address, in bytes, as far as that is known
	// before the way is.
	MaxPayload(to netip.Addr) int
	// Send takes a copy of one datagram; Flush sees to it that it leaves. The source is chosen by
	// route if from has no address. Errors that the stack deals with, and no program gets to see:
	// EAGAIN when there is no room at the moment, and [packet.ErrResolving] while the next hop's
	// address is being asked for.
	Send(payload []byte, from, to netip.AddrPort) error
	// Flush shows what was sent to the device. It reports false if the device has not taken all of
	// it: then it is to be called again.
	Flush() (all bool)
	// Arm makes Wait look again for what comes from now on. It reports whether something has come
	// since the last Receive.
	Arm() (ready bool, err error)
	// Wait calls look at once, and again whenever something may have come since, until look
	// returns true or the backend is closed.
	Wait(look func() (done bool)) error
	Close() error
}

// datagram is a datagram that a backend received and lends until Release.
type datagram struct {
	Payload  []byte // nobody writes to it
	From, To netip.AddrPort
	Entry    cq.Entry // this and View are the backend's own
	View     shm.Loan
}

// lookFor is how long a reader looks before it sleeps: about as long as it takes to be woken.
const lookFor = 30 * time.Microsecond

// linger looks at the devices for a reader that would have to sleep, if that has been of use. It
// reports whether the connection has something now.
func (s *Stack) linger(c *Conn) bool {
	if s.budget <= 0 || !c.grant() {
		return false
	}
	found, interrupted, looked := spin.Linger(s.budget, func() bool { return s.look(c) })
	if looked {
		c.learn(found, interrupted)
	}
	return found
}

func (c *Conn) grant() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.patience.Grant()
}

func (c *Conn) learn(found, interrupted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.patience.Learn(found, interrupted)
}
