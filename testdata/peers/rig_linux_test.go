package peers

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/netif"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp/device"
	"github.com/shmring/shmring/xdp/udp"
)

func TestMain(m *testing.M) { shmtest.Main(m, map[string]func(){"web": web, "rpc": rpc}) }

// long ends a test that hangs.
const long = time.Minute

var must = shmtest.Must

// hosts are two hosts that are joined, each with a stack of ours or the kernel's.
type hosts struct {
	t    testing.TB
	pair *veth.Pair
	ours [2]*udp.Stack // nil: the kernel's
}

// owner is whose sockets a host has.
type owner int

const (
	kernel owner = iota
	ours
	served // ours, where a device process has the interface
)

var sides = []struct {
	name string
	who  [2]owner
}{
	{"first", [2]owner{ours, kernel}}, {"second", [2]owner{kernel, ours}},
	{"both", [2]owner{ours, ours}}, {"first-served", [2]owner{served, kernel}},
	{"second-served", [2]owner{kernel, served}},
}

func newHosts(t testing.TB, who [2]owner) *hosts {
	t.Helper()
	h := &hosts{t: t, pair: xdptest.NewPair(t, veth.Config{})}
	for i := range who {
		e := h.end(i)
		switch who[i] {
		case kernel:
			continue
		case ours:
			err := e.Do(func() (err error) {
				h.ours[i], err = udp.Open(t.Context(), e.Name, udp.Options{})
				return err
			})
			shmtest.Require(t, "xdp", err)
		case served:
			s, err := udp.OpenDevice(t.Context(), serve(t, e), device.Request{Frames: 1024, Sends: 512},
				udp.StackOptions{})
			must(t, err)
			h.ours[i] = s
		}
		t.Cleanup(func() { must(t, h.ours[i].Close()) })
	}
	return h
}

// serve runs the server of a device process on an end and returns where it is found.
func serve(t testing.TB, e *veth.End) (path string) {
	t.Helper()
	var table *netif.Table
	var s *device.Server
	err := e.Do(func() (err error) {
		if table, err = netif.OpenTable(e.Index, netif.TableOptions{}); err != nil {
			return err
		}
		s, err = device.NewServer(t.Context(), device.Config{Interface: e.Name, Resolver: table,
			Allow: []device.Allow{{ID: uint32(os.Geteuid()), Frames: 1024, Sends: 512}}})
		return err
	})
	shmtest.Require(t, "xdp", err)
	dir, err := os.MkdirTemp("", "peers")
	must(t, err)
	path = filepath.Join(dir, "s")
	l, err := device.Listen(path)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l.UnixListener) }()
	t.Cleanup(func() {
		cancel()
		<-done // because of cancel
		must(t, errors.Join(s.Close(), l.Close(), table.Close(), os.RemoveAll(dir)))
	})
	return path
}

func (h *hosts) end(host int) *veth.End { return []*veth.End{h.pair.A, h.pair.B}[host] }

func (h *hosts) addr(host int, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(h.end(host).Addr, port)
}

// listen returns a socket of a host, which the test closes.
func (h *hosts) listen(host int, port uint16) net.PacketConn {
	h.t.Helper()
	local := h.addr(host, port)
	var c net.PacketConn
	var err error
	if s := h.ours[host]; s != nil {
		c, err = s.Listen(local)
	} else {
		err = h.end(host).Do(func() (err error) {
			c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
			return err
		})
	}
	must(h.t, err)
	h.t.Cleanup(func() { c.Close() }) // may be closed already
	return c
}

// dial returns a connected socket of a host.
func (h *hosts) dial(host int, port uint16, remote netip.AddrPort) net.Conn {
	h.t.Helper()
	local := h.addr(host, port)
	var c net.Conn
	var err error
	if s := h.ours[host]; s != nil {
		c, err = s.Dial(local, remote)
	} else {
		err = h.end(host).Do(func() (err error) {
			c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(local),
				net.UDPAddrFromAddrPort(remote))
			return err
		})
	}
	must(h.t, err)
	h.t.Cleanup(func() { c.Close() })
	return c
}
