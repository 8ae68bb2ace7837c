package udp

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// What waits for a next hop. The kernel keeps 208 KiB for each neighbour, and gives up after three
// questions, a second apart.
const (
	maxPending = 128
	firstRetry = 50 * time.Microsecond // the kernel may have known
	lastRetry  = 4 * time.Millisecond
)

// resolveTries is how long a datagram waits, which tests change.
var resolveTries = 3 * time.Second

// pending is the datagrams of which the next hop is not known yet. They are tried again at
// intervals while there are any.
type pending struct {
	waiting  atomic.Int32 // len(held)
	lost     atomic.Uint64
	failOnce sync.Once

	heldMu  sync.Mutex // after a shard's
	held    []heldDatagram
	blocked []netip.Addr // scratch
}

// StackStats counts what a stack could not send at once.
type StackStats struct {
	Waiting int    // datagrams that wait for a next hop
	Lost    uint64 // datagrams that were accepted, and not sent for want of one
}

// Stats returns the counts.
func (s *Stack) Stats() StackStats {
	return StackStats{Waiting: int(s.waiting.Load()), Lost: s.lost.Load()}
}

type heldDatagram struct {
	shard    *shard
	payload  []byte
	from, to netip.AddrPort
	until    time.Time
}

// keep puts a datagram aside until its next hop is known. When there are too many the oldest one
// goes, as in the kernel.
func (s *Stack) keep(sh *shard, b []byte, from, to netip.AddrPort) error {
	s.heldMu.Lock()
	if len(s.held) == maxPending {
		s.held = slices.Delete(s.held, 0, 1)
		s.lost.Add(1)
	}
	s.held = append(s.held, heldDatagram{sh, slices.Clone(b), from, to,
		time.Now().Add(resolveTries)})
	s.waiting.Store(int32(len(s.held)))
	first := len(s.held) == 1
	s.heldMu.Unlock()
	if first { // after heldMu, which all writers need: whoever has mu may wait for a device process
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closed {
			s.running.Go(s.retryAll)
		}
	}
	return nil
}

// retryAll tries until nothing is left to try.
func (s *Stack) retryAll() {
	for pause := firstRetry; s.waiting.Load() > 0; pause = min(2*pause, lastRetry) {
		select {
		case <-s.done:
			return
		case <-time.After(pause):
		}
		for _, sh := range s.shards {
			sh.mu.Lock()
			if !sh.closed {
				s.retry(sh, netip.Addr{})
				if err := sh.b.Flush(); err != nil {
					s.fail(err)
				}
			}
			sh.mu.Unlock()
		}
	}
}

// retry sends what a shard has waiting, in order for each destination, and forgets what failed or
// took too long. It reports whether something to this address still waits, so that nothing
// overtakes it. The lock of the shard is held.
func (s *Stack) retry(sh *shard, to netip.Addr) (waits bool) {
	s.heldMu.Lock()
	defer s.heldMu.Unlock()
	now := time.Now()
	s.blocked = s.blocked[:0]
	s.held = slices.DeleteFunc(s.held, func(h heldDatagram) bool {
		if h.shard != sh {
			return false
		}
		late := now.After(h.until)
		if !late && slices.Contains(s.blocked, h.to.Addr()) {
			return false
		}
		err := sh.b.Send(h.payload, h.from, h.to)
		if errors.Is(err, syscall.EAGAIN) && !late {
			s.blocked = append(s.blocked, h.to.Addr())
			return false
		}
		if err != nil {
			s.lost.Add(1)
		}
		return true
	})
	s.waiting.Store(int32(len(s.held)))
	return slices.Contains(s.blocked, to)
}
