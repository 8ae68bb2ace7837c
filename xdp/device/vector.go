package device

import (
	"fmt"
	"net/netip"

	"github.com/shmring/shmring/cq"
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

// ReleaseBatch gives the frames of several received datagrams back.
func (e *Endpoint) ReleaseBatch(entries []cq.Entry) error {
	for i := range entries {
		if err := e.Release(&entries[i]); err != nil {
			return err
		}
	}
	return nil
}
