package udp

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/device"
)

// onDevice is a backend on an application's end of a device process.
type onDevice struct {
	e      *device.Endpoint
	q      *cq.Queue
	ready  *os.File
	raw    syscall.RawConn
	failed cq.ErrorEntry
}

// OpenDevice runs UDP on the interface of a device process ("shmctl serve"), without any privilege.
// What the request says of ports and of the queue's wait object is not looked at.
//
// The device process may go away and come back: what is sent meanwhile is lost, as on a wire that
// is cut, and everything else goes on. Errors are those of [device.Dial].
func OpenDevice(ctx context.Context, path string, r device.Request, o StackOptions) (*Stack,
	error) {
	r.Ports, r.Queue, r.QueueOptions.Wait = nil, nil, cq.WaitFD
	e, err := device.Dial(ctx, path, r)
	if err != nil {
		return nil, err
	}
	b := &onDevice{e: e, q: e.Queue()}
	wait, err := b.q.GetWait()
	if err == nil {
		b.ready, b.raw, err = pollable(wait.FD)
	}
	if err != nil {
		_ = e.Close()
		return nil, &shm.Error{Pkg: pkg, Op: "use device process", Name: path, Err: err}
	}
	o.Bind = b.bind
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

// settleWait bounds how long Close waits for what was written just before it. Only what waits for
// a next hop that does not answer takes longer.
const settleWait = 200 * time.Millisecond

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
		_ = b.e.Release(&d.Entry)
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
		if err := b.e.Release(&loans[i].Entry); err != nil &&
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
	err := b.e.InjectFrom(payload, from.Port(), to)
	if errors.Is(err, device.ErrServerGone) {
		return nil
	}
	return err
}

func (b *onDevice) Flush() error { return nil }

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

func (b *onDevice) Wait(look func() bool) error { return wait(b.raw, look) }

// Check has nothing to look at: the endpoint knows when its device process goes.
func (b *onDevice) Check() error { return nil }

func (b *onDevice) Close() error {
	err := b.ready.Close() // returns once nobody is in Wait
	if e := b.e.Close(); err == nil {
		err = e
	}
	return err
}
