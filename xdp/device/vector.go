package device

import (
	"fmt"
	"net/netip"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
)

// EventWriter is where an endpoint reports what is no completion: a [*cq.EventWriter], or a
// [*cq.EventQueue] of this process.
type EventWriter interface {
	Write(ev *cq.Event) (int, error)
}

// Send is SendTo to an address of the request's address vector (fi_send).
func (e *Endpoint) Send(payload []byte, to cq.Addr, context uint64) error {
	dest, err := e.address(to)
	if err != nil {
		return err
	}
	return e.send(payload, 0, dest, context, sendFlags)
}

// Inject is InjectTo to an address of the request's address vector (fi_inject).
func (e *Endpoint) Inject(payload []byte, to cq.Addr) error {
	dest, err := e.address(to)
	if err != nil {
		return err
	}
	return e.send(payload, 0, dest, 0, injectFlags)
}

// address looks an index up at every send: the vector's owner may be another process.
func (e *Endpoint) address(to cq.Addr) (netip.AddrPort, error) {
	if v := e.req.Addresses; v != nil {
		var raw [28]byte // a sockaddr_in6
		if n, err := v.Lookup(to, raw[:]); err == nil && n <= len(raw) {
			if dest, ok := cq.ParseSockaddr(raw[:n]); ok {
				return dest, nil
			}
		}
	}
	return netip.AddrPort{}, failed("send", e.path, fmt.Errorf("%w: no address %d in the vector",
		ErrOptions, to), "insert it first, see cq.AddressVector")
}

// ReleaseBatch gives the frames of several received datagrams back, and tells the server once.
func (e *Endpoint) ReleaseBatch(entries []cq.Entry) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sess
	if s == nil {
		e.stats.Former += uint64(len(entries))
		return nil
	}
	for len(entries) > 0 {
		a, b, err := s.sq.Reserve(len(entries))
		if err != nil {
			return e.posted(err)
		}
		now := entries[:len(a)+len(b)] // fewer than all if there is no room for more
		entries = entries[len(now):]
		k := s.returns(now, a, b)
		e.stats.Former += uint64(len(now) - k)
		crash.At(crash.AppGiving)
		if err := s.sq.Commit(k); err != nil {
			return e.posted(err)
		}
		crash.At(crash.AppReturned)
		e.stats.Released += uint64(k)
	}
	return nil
}

// returns writes the commands that give frames back to two spans, and says how many they are:
// frames of a former server need none.
func (s *session) returns(entries, a, b []cq.Entry) (k int) {
	for i := range entries {
		if entries[i].Buf.Region() != s.umem.ID() {
			continue
		}
		if k < len(a) {
			a[k] = returnCommand(&entries[i])
		} else {
			b[k-len(a)] = returnCommand(&entries[i])
		}
		k++
	}
	return k
}
