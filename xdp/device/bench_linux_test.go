package device_test

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
	"github.com/shmring/shmring/xdp/endpoint"
)

// BenchmarkPrice is what the device process costs: the same datagrams sent, and sent and answered
// by a kernel socket, by an endpoint in this process and through a device process.
func BenchmarkPrice(b *testing.B) {
	b.Run("send/endpoint", func(b *testing.B) { benchSend(b, linked(b)) })
	b.Run("send/device", func(b *testing.B) { benchSend(b, throughDevice(b)) })
	b.Run("echo/endpoint", func(b *testing.B) { benchEcho(b, linked(b)) })
	b.Run("echo/device", func(b *testing.B) { benchEcho(b, throughDevice(b)) })
}

// path is a way to send and receive.
type path struct {
	to      netip.AddrPort
	send    func(payload []byte) error // EAGAIN when there is no room
	move    func() error               // what the caller has to do for things to go on
	qs      []*cq.Queue
	release func(e *cq.Entry) error
}

func throughDevice(b *testing.B) *path {
	r := newRemote(b)
	to := r.echo(6000)
	server := r.serve()
	b.Cleanup(server.kill)
	e, err := device.Dial(b.Context(), r.path, device.Request{Ports: []uint16{5000}, Sends: 256})
	must(b, err)
	b.Cleanup(func() { must(b, e.Close()) })
	return &path{to: to, qs: []*cq.Queue{e.Queue()}, release: e.Release,
		move: func() error { return nil },
		send: func(payload []byte) error { return e.SendTo(payload, 0, to, 1) }}
}

func linked(b *testing.B) *path {
	r := newRemote(b)
	to := r.echo(6000)
	end := r.pair.B
	program := xdptest.Attach(b, end, xdp.ProgramOptions{})
	umem, err := xdp.NewUMEM(xdp.UMEMOptions{Frames: 4096})
	must(b, err)
	b.Cleanup(func() { must(b, umem.Close(context.Background())) })
	sock := xdptest.Open(b, end, 0, umem, xdp.Options{})
	must(b, sock.Register(program, 0))
	xdptest.Steer(b, program, 5000, 0)
	var qs []*cq.Queue
	var own []*cq.Writer
	for range 2 {
		q, err := cq.Create(cq.Unnamed("linked"), cq.Options{})
		must(b, err)
		w, err := q.Writer()
		must(b, err)
		b.Cleanup(func() { must(b, errors.Join(w.Close(), q.Close())) })
		qs, own = append(qs, q), append(own, w)
	}
	e, err := endpoint.Open(endpoint.Config{Socket: sock, Receive: own[0], Transmit: own[1],
		Resolver: wires{end, r.pair.A}, NoObject: true,
		Local: netip.AddrPortFrom(end.Addr, 5000)})
	must(b, err)
	b.Cleanup(func() { must(b, e.Close()) })
	msg := endpoint.Msg{Dest: to, Context: 1}
	return &path{to: to, qs: qs, release: e.Release,
		move: func() error { _, err := e.Progress(); return err },
		send: func(payload []byte) error { msg.Buf = payload; return e.SendMsg(&msg) }}
}

// read returns what has come.
func (p *path) read(es []cq.Entry) []cq.Entry {
	for _, q := range p.qs {
		if n, _ := cq.Read(q, es); n > 0 {
			return es[:n]
		}
	}
	runtime.Gosched()
	return nil
}

// benchSend measures datagrams to a port where nobody listens.
func benchSend(b *testing.B, p *path) {
	payload := make([]byte, 64)
	var es [64]cq.Entry
	done := 0
	for sent := 0; done < b.N; {
		for range 32 {
			if sent == b.N || p.send(payload) != nil {
				break
			}
			sent++
		}
		must(b, p.move())
		for _, e := range p.read(es[:]) {
			if e.Flags&cq.FlagFrame == 0 {
				done++
			} else {
				must(b, p.release(&e))
			}
		}
	}
}

// benchEcho measures one datagram at a time, there and back.
func benchEcho(b *testing.B, p *path) {
	payload := make([]byte, 64)
	var es [8]cq.Entry
	for range b.N {
		must(b, p.send(payload))
		end := time.Now().Add(10 * time.Second)
		for got := false; !got; {
			must(b, p.move())
			for _, e := range p.read(es[:]) {
				if e.Flags&cq.FlagFrame != 0 {
					got = true
					must(b, p.release(&e))
				}
			}
			if time.Now().After(end) {
				b.Fatal("lost")
			}
		}
	}
}
