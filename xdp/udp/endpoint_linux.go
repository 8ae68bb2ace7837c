package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

// onEndpoint is a backend on an endpoint of this process.
type onEndpoint struct {
	e     *endpoint.Endpoint
	q     *cq.Queue
	ready *os.File // the socket's descriptor once more, for the runtime's poller
	raw   syscall.RawConn
	msg   endpoint.Msg
	limit int // of loans
	// resolver knows better why there is no way than the endpoint says; nil: nobody does
	resolver xdp.Resolver
	back     []cq.Entry
}

// newOnEndpoint returns a backend that uses an endpoint and reads its receive completions from q.
// The endpoint lends frames, sends to any address, and is nobody else's any more: Close closes it.
// The queue stays the caller's.
func newOnEndpoint(e *endpoint.Endpoint, q *cq.Queue) (backend, error) {
	f, raw, err := pollable(e.FD())
	if err != nil {
		return nil, &shm.Error{Pkg: pkg, Op: "use endpoint", Err: err}
	}
	// By default a quarter sends; a quarter of all is kept for the kernel to receive into.
	half := int(e.Socket().FrameStats().Frames / 2)
	return &onEndpoint{e: e, q: q, ready: f, raw: raw, limit: half}, nil
}

func (b *onEndpoint) Receive(dst []datagram) (int, error) {
	if _, err := b.e.Progress(); err != nil {
		return 0, err
	}
	es, err := b.q.Peek(len(dst))
	if err != nil {
		if errors.Is(err, cq.ErrWouldBlock) {
			err = nil
		}
		return 0, err
	}
	n := 0
	for i := range es {
		d := &dst[n]
		d.Entry = es[i]
		payload, err := b.e.Payload(&d.Entry)
		if err != nil {
			continue // no frame, so none to be given back
		}
		rec, err := b.e.Record(d.Entry.Buf)
		if err != nil {
			continue
		}
		d.Payload, d.From, d.To = payload, rec.Src, rec.Dst
		n++
	}
	return n, b.q.Release(len(es))
}

func (b *onEndpoint) Frames() int { return b.limit }

func (b *onEndpoint) Release(loans []datagram) error {
	b.back = b.back[:0]
	for i := range loans {
		b.back = append(b.back, loans[i].Entry)
	}
	return b.e.ReleaseBatch(b.back)
}

func (b *onEndpoint) MaxPayload(to netip.Addr) int {
	most := b.e.MaxPayload()
	if to.Is6() {
		most -= packet.IPv6Bytes - packet.IPv4Bytes
	}
	return most
}

func (b *onEndpoint) Send(payload []byte, from, to netip.AddrPort) error {
	b.msg = endpoint.Msg{Buf: payload, Dest: to, From: from, Flags: cq.FlagMore}
	err := b.e.InjectMsg(&b.msg)
	b.msg.Buf = nil
	switch {
	case err == nil:
		return nil
	case errors.Is(err, endpoint.ErrResolving):
		return ErrResolving
	case errors.Is(err, endpoint.ErrUnreachable):
		return b.whyNot(to.Addr(), err)
	}
	return err
}

// whyNot says why nothing can be sent to an address: with the number that the kernel would give, or
// ErrNoAnswer.
func (b *onEndpoint) whyNot(to netip.Addr, err error) error {
	if b.resolver == nil {
		return err
	}
	_, why := b.resolver.Lookup(to)
	switch {
	case why == nil, errors.Is(why, endpoint.ErrResolving):
		return ErrResolving // it became known in between
	case errors.Is(why, syscall.EHOSTUNREACH):
		return ErrNoAnswer
	}
	return why
}

func (b *onEndpoint) Flush() error {
	b.e.Flush()
	return nil
}

// Arm has nothing to do: every packet that arrives makes the runtime's poller look.
func (b *onEndpoint) Arm() (bool, error) { return false, nil }

func (b *onEndpoint) Wait(look func() bool) error { return wait(b.raw, look) }

func (b *onEndpoint) Check() error { return b.e.Socket().Check() }

func (b *onEndpoint) Close() error {
	err := b.ready.Close() // returns once nobody is in Wait
	if e := b.e.Close(); err == nil && e != nil {
		err = fmt.Errorf("udp: close endpoint: %w", e)
	}
	return err
}
