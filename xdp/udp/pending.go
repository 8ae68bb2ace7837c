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
	maxPending   = 128
	retryEvery   = 2 * time.Millisecond
	resolveTries = 3 * time.Second
)

// pending is the datagrams of which the next hop is not known yet. They are tried again at
// intervals while there are any.
type pending struct {
	waiting  atomic.Int32 // len(held)
	lost     atomic.Uint64
	failOnce sync.Once

	heldMu sync.Mutex // after a shard's
	held   []heldDatagram
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
	defer s.heldMu.Unlock()
	if len(s.held) == maxPending {
		s.held = slices.Delete(s.held, 0, 1)
		s.lost.Add(1)
	}
	s.held = append(s.held, heldDatagram{sh, slices.Clone(b), from, to,
		time.Now().Add(resolveTries)})
	s.waiting.Store(int32(len(s.held)))
	if len(s.held) == 1 {
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
	t := time.NewTicker(retryEvery)
	defer t.Stop()
	for s.waiting.Load() > 0 {
		select {
		case <-s.done:
			return
		case <-t.C:
		}
		for _, sh := range s.shards {
			sh.mu.Lock()
			if !sh.closed {
				s.retry(sh)
				if err := sh.b.Flush(); err != nil {
					s.lost.Add(1)
				}
			}
			sh.mu.Unlock()
		}
	}
}

// retry sends what a shard has waiting, in order, and forgets what failed or took too long. The
// lock of the shard is held.
func (s *Stack) retry(sh *shard) {
	s.heldMu.Lock()
	defer s.heldMu.Unlock()
	now := time.Now()
	s.held = slices.DeleteFunc(s.held, func(h heldDatagram) bool {
		if h.shard != sh {
			return false
		}
		err := sh.b.Send(h.payload, h.from, h.to)
		if errors.Is(err, syscall.EAGAIN) && now.Before(h.until) {
			return false
		}
		if err != nil {
			s.lost.Add(1)
		}
		return true
	})
	s.waiting.Store(int32(len(s.held)))
}
