package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
	"github.com/shmring/shmring/xdp/endpoint"
)

// servePath is where the device process of a side listens.
func servePath() string { return filepath.Join(shm.DefaultPath(), "device") }

// servedPort is role 1's part of a device case: the process that owns end A. Nothing is done by the
// calls of a port.
type servedPort struct {
	port
	server *device.Server
	listen *net.UnixListener
	stop   context.CancelFunc
	served chan struct{}
}

func openServer(mode xdp.AttachMode) (port, error) {
	if err := pinThreads(); err != nil {
		return nil, err
	}
	frame, err := enterEnd(0)
	if err != nil {
		return nil, err
	}
	hop := xdp.Hop{LocalMAC: [6]byte(frame[6:12]), NextMAC: [6]byte(frame[:6]),
		Source: endAddrs[0].Addr(), MTU: 1500}
	p := &servedPort{served: make(chan struct{})}
	p.server, err = device.NewServer(context.Background(), device.Config{
		Interface: endNames[0], Attach: mode,
		Socket:   xdp.Options{Mode: xdp.BindCopy},
		Resolver: endpoint.Static{endAddrs[1].Addr(): hop}})
	if err != nil {
		return nil, err
	}
	p.listen, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: servePath(), Net: "unixpacket"})
	if err != nil {
		_ = p.server.Close()
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() {
		defer close(p.served)
		_ = p.server.Serve(ctx, p.listen)
	}()
	return p, nil
}

func (p *servedPort) close() {
	p.stop()
	_ = p.listen.Close()
	<-p.served
	_ = p.server.Close()
}

// devicePort is an application's end of that process: role 0's port.
type devicePort struct {
	e       *device.Endpoint
	payload [payloadBytes]byte
	completions
}

func openDevicePort(portOptions) (port, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		e, err := device.Dial(ctx, servePath(), device.Request{Name: "bench",
			Ports: []uint16{endAddrs[0].Port()}})
		if err == nil {
			return &devicePort{e: e}, nil
		}
		// The other process makes it just now.
		if ctx.Err() != nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *devicePort) close() { _ = p.e.Close() }

func (p *devicePort) put(s uint64, n int) (int, error) {
	k := 0
	for ; k < n; k++ {
		binary.LittleEndian.PutUint64(p.payload[sequenceOff-payloadOff:], s+uint64(k))
		if err := p.e.SendTo(p.payload[:], endAddrs[1], 0); err != nil {
			if errors.Is(err, device.ErrNoSlot) {
				break
			}
			return k, err
		}
		p.sending++
	}
	return k, p.turn()
}

// turn reads what the device process completed.
func (p *devicePort) turn() error { return p.take(p.e.Queue()) }

func (p *devicePort) get(n int) (int, uint64, error) {
	if len(p.arrived) == 0 {
		if err := p.turn(); err != nil || len(p.arrived) == 0 {
			return 0, 0, err
		}
	}
	k := min(n, len(p.arrived))
	var sum uint64
	for i := range p.arrived[:k] {
		loan, err := p.e.View(&p.arrived[i])
		if err != nil {
			return 0, 0, err
		}
		sum += binary.LittleEndian.Uint64(loan.Bytes()[sequenceOff-payloadOff:])
		loan.Release()
		if err := p.e.Release(&p.arrived[i]); err != nil {
			return 0, 0, err
		}
	}
	p.arrived = append(p.arrived[:0], p.arrived[k:]...)
	return k, sum, nil
}

func (p *devicePort) back() error { return errors.ErrUnsupported }

func (p *devicePort) settle() error {
	for p.sending > 0 {
		if err := p.turn(); err != nil {
			return err
		}
	}
	return nil
}

func (p *devicePort) await() error { return errors.ErrUnsupported }
