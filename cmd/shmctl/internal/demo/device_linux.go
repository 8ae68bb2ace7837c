package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
	"github.com/shmring/shmring/xdp/port"
)

// device owns the AF_XDP socket. It is the only process that does, and the only one that needs a
// privilege.
type device struct {
	program  *xdp.Program
	umem     *xdp.UMEM
	socket   *xdp.Socket
	commands *cq.Queue
	rx, tx   *cq.Writer
	peers    *cq.AddressVector
	port     *port.Port
	payloads *shm.Region
}

const deviceQueue = 0

func runDevice(l *line, c config) (err error) {
	d, err := shm.OpenDir(c.Dir)
	if err != nil {
		return err
	}
	defer d.Close()
	dev := &device{}
	defer func() { err = errors.Join(err, dev.close(d, c)) }()
	if err := dev.openDevice(c); err != nil {
		return err
	}
	if err := dev.openQueues(l.ctx, d, c); err != nil {
		return err
	}
	l.send(event{Is: "ready"})
	ctx, cancel := context.WithCancelCause(l.ctx)
	reported := make(chan error, 1)
	go func() { reported <- dev.followOrders(l, cancel) }()
	if err := dev.port.Run(ctx); !errors.Is(context.Cause(ctx), errReport) {
		return err
	}
	if err := <-reported; err != nil {
		return err
	}
	l.send(event{Is: "report", Stats: dev.report()})
	return nil
}

// errReport ends the device's loop so that it can say what it did.
var errReport = errors.New("report wanted")

// followOrders waits until both directions are over.
func (dev *device) followOrders(l *line, cancel context.CancelCauseFunc) error {
	for _, what := range []string{"rx", "tx", "report"} {
		if err := l.await(what); err != nil {
			cancel(err)
			return err
		}
	}
	cancel(errReport)
	return nil
}

// openDevice makes memory, socket and steering program.
func (dev *device) openDevice(c config) (err error) {
	mode := xdp.AttachAuto
	if c.Generic {
		mode = xdp.AttachGeneric
	}
	dev.program, err = xdp.Attach(c.Interface, xdp.ProgramOptions{Mode: mode})
	if err != nil {
		return err
	}
	if dev.umem, err = xdp.NewUMEM(xdp.UMEMOptions{}); err != nil {
		return err
	}
	dev.socket, err = xdp.Open(c.Interface, deviceQueue, dev.umem, xdp.Options{})
	if err != nil {
		return err
	}
	if err := dev.socket.Register(dev.program, 0); err != nil {
		return err
	}
	local, err := netip.ParseAddrPort(c.Local)
	if err != nil {
		return err
	}
	return dev.program.Steer(local.Port(), 0)
}

// openQueues makes the command queue, attaches to the application's queue, and exchanges memory.
func (dev *device) openQueues(ctx context.Context, d *shm.Dir, c config) (err error) {
	dev.commands, err = cq.Create(d, c.Commands, cq.Options{Size: queueSlots, MaxLanes: 4,
		Wait: cq.WaitFD})
	if err != nil {
		return err
	}
	// Two lanes, so that a flood of receives cannot eat the room of promised send completions.
	if dev.rx, err = cq.Attach(ctx, d, c.Queue, cq.WriterOptions{Wait: true}); err != nil {
		return err
	}
	if dev.tx, err = cq.Attach(ctx, d, c.Queue, cq.WriterOptions{}); err != nil {
		return err
	}
	if err := dev.openPort(c); err != nil {
		return err
	}
	conn, err := socketOf(fdPeerSocket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := shm.SendFDs(conn, []byte{1}, dev.umem.FD()); err != nil {
		return err
	}
	if dev.payloads, err = receivePayloads(conn); err != nil {
		return err
	}
	return dev.port.AddRegion(dev.payloads)
}

// openPort joins socket and queues. The peer is the only one that there is, and known.
func (dev *device) openPort(c config) error {
	local, err := netip.ParseAddrPort(c.Local)
	if err != nil {
		return err
	}
	remote, err := netip.ParseAddrPort(c.Remote)
	if err != nil {
		return err
	}
	localMAC, err := parseMAC(c.LocalMAC)
	if err != nil {
		return err
	}
	remoteMAC, err := parseMAC(c.RemoteMAC)
	if err != nil {
		return err
	}
	if dev.peers, err = cq.CreateAnonymousAddresses("peers", cq.AddressOptions{}); err != nil {
		return err
	}
	if _, err := dev.peers.Insert([][]byte{cq.Sockaddr(remote)}); err != nil {
		return err
	}
	dev.port, err = port.Open(port.Config{Commands: dev.commands, Endpoint: endpoint.Config{
		Socket: dev.socket, Receive: dev.rx, Transmit: dev.tx, Addresses: dev.peers, Local: local,
		NoObject: true, // a run leaves nothing behind, killed or not

		Resolver: endpoint.Static{remote.Addr(): packet.Hop{LocalMAC: localMAC,
			NextMAC: remoteMAC, Source: local.Addr()}}}})
	return err
}

func parseMAC(s string) (mac [6]byte, err error) {
	b, err := net.ParseMAC(s)
	if err == nil && len(b) != len(mac) {
		err = fmt.Errorf("hardware address %s is not of Ethernet", s)
	}
	copy(mac[:], b)
	return mac, err
}

// report sums up what the device process did.
func (dev *device) report() *result {
	r := &result{Mode: dev.program.Mode().String(), Queue: deviceQueue,
		Copy: dev.socket.Mode() != xdp.BindZeroCopy}
	for _, w := range []*cq.Writer{dev.rx, dev.tx} {
		s := w.Stats()
		r.Wakes, r.Publishes = r.Wakes+s.Wakes, r.Publishes+s.Publishes
	}
	p, q := dev.port.Stats(), dev.commands.Stats()
	r.Syscalls = r.Wakes + p.Syscalls.Total() + p.Polls + q.Sleeps + q.Barriers + q.Resets
	return r
}

func (dev *device) close(d *shm.Dir, c config) error {
	var err error
	if dev.port != nil {
		err = dev.port.Close()
	} else if dev.socket != nil {
		err = dev.socket.Close()
	}
	if dev.program != nil {
		err = errors.Join(err, dev.program.Close())
	}
	for _, w := range []*cq.Writer{dev.rx, dev.tx} {
		if w != nil {
			err = errors.Join(err, w.Close())
		}
	}
	if dev.commands != nil {
		err = errors.Join(err, dev.commands.Close())
	}
	if dev.peers != nil {
		err = errors.Join(err, dev.peers.Close())
	}
	if dev.payloads != nil {
		err = errors.Join(err, dev.payloads.Close(context.Background()))
	}
	if dev.umem != nil {
		err = errors.Join(err, dev.umem.Close(context.Background()))
	}
	// If the application was killed, its queue is nobody's.
	_ = cq.RemoveDead(d, c.Queue)
	return err
}
