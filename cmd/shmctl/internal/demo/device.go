package demo

import (
	"context"
	"net/netip"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/device"
)

// through is the way through a device process, which lends frames where the kernel put them.
type through struct {
	e       *device.Endpoint
	to      netip.AddrPort
	payload [wire.PayloadMaxBytes]byte
}

func throughDevice(ctx context.Context, c config) (way, error) {
	t := &through{to: netip.AddrPortFrom(c.Ends[1].Addr, peerPort)}
	r := device.Request{Name: "demo", Ports: []uint16{devicePort}, Frames: lentFrames,
		Sends: sendSlots, InPlace: true, NoReconnect: true,
		QueueOptions: cq.Options{Size: queueSlots}}
	var err error
	t.e, err = wire.Dial(ctx, c.Socket, r)
	return t, err
}

func (t *through) queue() *cq.Queue                   { return t.e.Queue() }
func (t *through) view(e *cq.Entry) (shm.Loan, error) { return t.e.View(e) }
func (t *through) giveBack(frames []cq.Entry) error   { return t.e.ReleaseBatch(frames) }
func (t *through) flush() error                       { return nil }
func (t *through) close() error                       { return t.e.Close() }

func (t *through) arrived(e *cq.Entry) (ns uint64, err error) {
	r, err := t.e.Record(e)
	return r.RxNs, err
}

func (t *through) post(_ int, sequence, context uint64) error {
	return t.e.SendTo(t.payload[:wire.Put(t.payload[:], sequence)], t.to, context)
}

func (t *through) stats() (wakes, publishes uint64) {
	s := t.e.Stats()
	return s.Wakes, s.Publishes
}
