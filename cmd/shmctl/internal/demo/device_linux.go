package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
	"github.com/shmring/shmring/xdp/endpoint"
)

const deviceQueue = 0

// runDevice owns the AF_XDP socket. It is the only process that does, and the only one that needs a
// privilege.
func runDevice(l *line, c config) (err error) {
	defer os.RemoveAll(filepath.Dir(c.Socket))
	server, err := openServer(l.ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	at, err := device.Listen(c.Socket)
	if err != nil {
		return err
	}
	defer at.Close()
	l.send(event{Is: "ready"})
	ctx, cancel := context.WithCancelCause(l.ctx)
	defer cancel(nil)
	reported := make(chan error, 1)
	go func() {
		err := followOrders(l)
		if err == nil {
			l.send(event{Is: "report", Stats: reportOf(server)})
			<-l.ctx.Done()
		}
		cancel(nil)
		reported <- err
	}()
	if err := server.Serve(ctx, at.UnixListener); ctx.Err() == nil {
		return err
	}
	return <-reported
}

// followOrders waits until both directions are over.
func followOrders(l *line) error {
	for _, what := range []string{"rx", "tx", "report"} {
		if err := l.await(what); err != nil {
			return err
		}
	}
	return nil
}

// openServer makes a device process. The peer is the only one that there is, and known.
func openServer(ctx context.Context, c config) (*device.Server, error) {
	mode := xdp.AttachAuto
	if c.Generic {
		mode = xdp.AttachGeneric
	}
	local, err := netip.ParseAddrPort(c.Local)
	if err != nil {
		return nil, err
	}
	remote, err := netip.ParseAddrPort(c.Remote)
	if err != nil {
		return nil, err
	}
	localMAC, err := parseMAC(c.LocalMAC)
	if err != nil {
		return nil, err
	}
	remoteMAC, err := parseMAC(c.RemoteMAC)
	if err != nil {
		return nil, err
	}
	return device.NewServer(ctx, device.Config{Interface: c.Interface, Queues: []uint32{deviceQueue},
		Attach:   mode,
		NoObject: true, // a run leaves nothing behind, killed or not
		Resolver: endpoint.Static{remote.Addr(): xdp.Hop{LocalMAC: localMAC,
			NextMAC: remoteMAC, Source: local.Addr()}}})
}

func parseMAC(s string) (mac [6]byte, err error) {
	b, err := net.ParseMAC(s)
	if err == nil && len(b) != len(mac) {
		err = fmt.Errorf("hardware address %s is not of Ethernet", s)
	}
	copy(mac[:], b)
	return mac, err
}

// reportOf sums up what the device process did.
func reportOf(server *device.Server) *result {
	_, _, attached, bound := server.Interface()
	s := server.Stats()
	r := &result{Notes: dropsOf(&s),
		Mode: attached.String(), Queue: deviceQueue, Copy: bound != xdp.BindZeroCopy,
		Wakes: s.Wakes, Publishes: s.Publishes, Syscalls: s.QueueCalls + s.Polls}
	for _, calls := range s.Syscalls {
		r.Syscalls += calls.Send + calls.Receive
	}
	return r
}
