package peers

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/shmring/shmring/shm/shmtest"
	"github.com/shmring/shmring/xdp/udp"
	"github.com/shmring/shmring/xdp/veth"
	"github.com/shmring/shmring/xdp/xdptest"
)

func TestMain(m *testing.M) { shmtest.Main(m) }

// long ends a test that hangs.
const long = 30 * time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hosts are two hosts that are joined, each with a stack of ours or the kernel's.
type hosts struct {
	t    testing.TB
	pair *veth.Pair
	ours [2]*udp.Stack // nil: the kernel's
}

// sides are who has a stack of ours.
var sides = []struct {
	name string
	ours [2]bool
}{{"first", [2]bool{true, false}}, {"second", [2]bool{false, true}}, {"both", [2]bool{true, true}}}

func newHosts(t testing.TB, ours [2]bool) *hosts {
	t.Helper()
	h := &hosts{t: t, pair: xdptest.NewPair(t, veth.Config{})}
	for i := range ours {
		if !ours[i] {
			continue
		}
		e := h.end(i)
		err := e.Do(func() (err error) {
			h.ours[i], err = udp.Open(t.Context(), e.Name, udp.Options{})
			return err
		})
		shmtest.Require(t, "xdp", err)
		t.Cleanup(func() { must(t, h.ours[i].Close()) })
	}
	return h
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
