package udp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/pollable"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
	"github.com/shmring/shmring/xdp/endpoint"
)

// onEndpoint is a backend on an endpoint of this process.
type onEndpoint struct {
	poller // of the socket's descriptor
	e      *endpoint.Endpoint
	q      *cq.Queue
	msg    endpoint.Msg
	limit  int // of loans
	// resolver knows better why there is no way than the endpoint says; nil: nobody does
	resolver xdp.Resolver
	back     []cq.Entry
}

// newOnEndpoint returns a backend that uses an endpoint and reads its receive completions from q.
// The endpoint lends frames, sends to any address, and is nobody else's any more: Close closes it.
// The queue stays the caller's.
func newOnEndpoint(e *endpoint.Endpoint, q *cq.Queue) (*onEndpoint, error) {
	p, err := polled(e.Socket().FD())
	if err != nil {
		return nil, &shm.Error{Pkg: pkg, Op: "use endpoint", Err: err}
	}
	// By default a quarter sends; a quarter of all is kept for the kernel to receive into.
	half := int(e.Socket().FrameStats().Frames / 2)
	return &onEndpoint{poller: p, e: e, q: q, limit: half}, nil
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
	return b.e.Release(b.back...)
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
		return packet.ErrResolving // it became known in between
	case errors.Is(why, syscall.EHOSTUNREACH):
		return ErrNoAnswer
	}
	return why
}

func (b *onEndpoint) Flush() (all bool) { return b.e.Flush() == 0 }

// Arm has nothing to do: every packet that arrives makes the runtime's poller look.
func (b *onEndpoint) Arm() (bool, error) { return false, nil }

func (b *onEndpoint) Close() error {
	err := b.poller.Close()
	if e := b.e.Close(); err == nil && e != nil {
		err = fmt.Errorf("udp: close endpoint: %w", e)
	}
	return err
}

// onDevice is a backend on an application's end of a device process.
type onDevice struct {
	poller // of the queue's descriptor
	e      *device.Endpoint
	q      *cq.Queue
	failed cq.ErrorEntry
}

// OpenDevice runs UDP on the interface of a device process ("shmctl serve"), without any privilege.
// What the request says of ports and of the queue's wait object is not looked at.
//
// The device process may go away and come back: what is sent meanwhile is lost, as on a wire that
// is cut, and everything else goes on. Errors are those of [device.Dial].
func OpenDevice(ctx context.Context, path string, r device.Request, o StackOptions) (*Stack,
	error) {
	r.Ports, r.QueueOptions.Wait = nil, cq.WaitFD
	e, err := device.Dial(ctx, path, r)
	if err != nil {
		return nil, err
	}
	b := &onDevice{e: e, q: e.Queue()}
	wait, err := b.q.GetWait()
	if err == nil {
		b.poller, err = polled(wait.FD)
	}
	if err != nil {
		_ = e.Close()
		return nil, &shm.Error{Pkg: pkg, Op: "use device process", Name: path, Err: err}
	}
	o.bind = b.bind
	return newStack(o, b)
}

// bindWait bounds how long the device process may take to grant a port.
const bindWait = 10 * time.Second

// bind takes a port. Which addresses the interface has is the device process's affair.
func (b *onDevice) bind(local netip.AddrPort) (netip.AddrPort, func() error, error) {
	ctx, cancel := context.WithTimeout(context.Background(), bindWait)
	defer cancel()
	port := local.Port()
	err := error(nil)
	const tries, first, many = 64, 32768, 28232
	if port != 0 {
		err = b.e.Take(ctx, port)
	}
	for i := 0; port == 0 || local.Port() == 0 && errors.Is(err, device.ErrPortTaken); i++ {
		if i == tries {
			break
		}
		port = uint16(first + rand.IntN(many))
		err = b.e.Take(ctx, port)
	}
	if err != nil {
		return local, nil, err
	}
	return netip.AddrPortFrom(local.Addr(), port), func() error {
		b.settle()
		ctx, cancel := context.WithTimeout(context.Background(), bindWait)
		defer cancel()
		err := b.e.Drop(ctx, port)
		if errors.Is(err, device.ErrServerGone) {
			return nil // and so is what it had granted
		}
		return err
	}, nil
}

// settle lets out what was written to a connection that is about to lose its port.
func (b *onDevice) settle() {
	ctx, cancel := context.WithTimeout(context.Background(), settleWait)
	defer cancel()
	_ = b.e.Settle(ctx)
}

func (b *onDevice) Receive(dst []datagram) (int, error) {
	for {
		es, err := b.q.Peek(len(dst))
		switch {
		case errors.Is(err, cq.ErrWouldBlock):
			return 0, nil
		case errors.Is(err, cq.ErrAvail): // a send that found no way
			if err := b.q.ReadErr(&b.failed); err != nil {
				return 0, err
			}
			continue
		}
		var lane *cq.LaneError
		if errors.As(err, &lane) {
			continue // of a device process that is gone
		}
		if err != nil {
			return 0, err
		}
		n := 0
		for i := range es {
			if es[i].Flags&cq.FlagRecv != 0 && b.lend(&es[i], &dst[n]) {
				n++
			}
		}
		if err := b.q.Release(len(es)); n > 0 || err != nil {
			return n, err
		}
	}
}

// lend fills a datagram in. It reports false for a frame of a device process that is long gone.
func (b *onDevice) lend(e *cq.Entry, d *datagram) bool {
	d.Entry = *e
	rec, err := b.e.Record(&d.Entry)
	if err != nil {
		return false
	}
	if d.View, err = b.e.View(&d.Entry); err != nil {
		_ = b.e.Release(d.Entry)
		return false
	}
	d.Payload, d.From, d.To = d.View.Bytes(), rec.Src, rec.Dst
	return true
}

// Frames leaves a quarter of those granted for what is yet to come. There is a number even while
// there is no device process, since frames of the last one may still be lent.
func (b *onDevice) Frames() int {
	frames := b.e.Info().Frames
	return max(minBacklog, frames*3/4)
}

func (b *onDevice) Release(loans []datagram) error {
	for i := range loans {
		loans[i].View.Release()
		// A device process that is gone has its frames back.
		if err := b.e.Release(loans[i].Entry); err != nil &&
			!errors.Is(err, device.ErrServerGone) {
			return err
		}
	}
	return nil
}

func (b *onDevice) MaxPayload(to netip.Addr) int {
	n := b.e.Info().MaxPayload
	if n == 0 {
		return 65507 // nobody knows while there is no device process
	}
	if to.Is6() {
		n -= 20
	}
	return n
}

func (b *onDevice) Send(payload []byte, from, to netip.AddrPort) error {
	err := b.e.InjectTo(payload, from.Port(), to)
	if errors.Is(err, device.ErrServerGone) {
		return nil
	}
	return err
}

func (b *onDevice) Flush() (all bool) { return true }

func (b *onDevice) Arm() (ready bool, err error) {
	err = b.q.TryWait()
	var lane *cq.LaneError
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, cq.ErrWouldBlock), errors.Is(err, cq.ErrSignaled), errors.As(err, &lane):
		return true, nil
	}
	return false, err
}

func (b *onDevice) Close() error {
	err := b.poller.Close()
	if e := b.e.Close(); err == nil {
		err = e
	}
	return err
}

// poller is a descriptor once more, as a file that the runtime polls.
type poller struct {
	file *os.File
	raw  syscall.RawConn
}

func polled(fd int) (p poller, err error) {
	if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
		p.file, p.raw, err = pollable.File(fd, "packets")
	}
	return p, err
}

// Close returns once nobody is in Wait.
func (p poller) Close() error { return p.file.Close() }

// Wait calls look at once, and again each time that the descriptor has become readable, until look
// returns true or the file is closed.
func (p poller) Wait(look func() bool) error {
	err := p.raw.Read(func(uintptr) bool { return look() })
	if errors.Is(err, os.ErrClosed) {
		return os.ErrClosed
	}
	return err
}
