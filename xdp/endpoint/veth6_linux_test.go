package endpoint_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

// six gives both ends IPv6 addresses, one of them for this link only.
func six(t testing.TB, p *veth.Pair) {
	t.Helper()
	for e, last := range map[*veth.End]string{p.A: "1", p.B: "2"} {
		xdptest.Do(t, e, func() error {
			for _, which := range []string{"all", "default", e.Name} {
				dir := "/proc/sys/net/ipv6/conf/" + which
				err := errors.Join(os.WriteFile(dir+"/disable_ipv6", []byte("0"), 0),
					os.WriteFile(dir+"/accept_dad", []byte("0"), 0))
				if err != nil {
					return err
				}
			}
			l, err := netlink.LinkByName(e.Name)
			for _, prefix := range []string{"2001:db8::", "fe80::"} {
				a := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(prefix + last),
					Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD}
				if err == nil {
					err = netlink.AddrAdd(l, a)
				}
			}
			return err
		})
	}
}

// TestVeth6: a kernel socket and an endpoint talk IPv6, with addresses of the link too, and the
// kernel keeps the membership of a group.
func TestVeth6(t *testing.T) {
	shmtest.Conforms(t)
	w := newWired(t, xdp.AttachNative, nil)
	six(t, w.pair)
	for _, local := range []string{"2001:db8::1", "fe80::1"} {
		t.Run(strings.ReplaceAll(local, ":", "-"), func(t *testing.T) { w.talk6(t, local) })
	}
	group := netip.MustParseAddr("ff02::4321")
	member := func() (yes bool) {
		xdptest.Do(t, w.pair.B, func() error {
			b, err := os.ReadFile("/proc/thread-self/net/igmp6")
			yes = strings.Contains(string(b), "ff020000000000000000000000004321")
			return err
		})
		return yes
	}
	must(t, w.Join(group))
	if !member() {
		t.Error("the kernel knows of no membership")
	}
	must(t, w.Leave(group))
	if member() {
		t.Error("the membership stays")
	}
}

func (w *wired) talk6(t *testing.T, local string) {
	self := netip.MustParseAddr(local)
	other := self.Next()
	seen := self // as the endpoint sees it
	if self.IsLinkLocalUnicast() {
		seen = self.WithZone(strconv.Itoa(w.pair.B.Index))
		self, other = self.WithZone(w.pair.A.Name), other.WithZone(w.pair.A.Name)
	}
	var c *net.UDPConn
	xdptest.Do(t, w.pair.A, func() (err error) {
		c, err = net.ListenUDP("udp6", net.UDPAddrFromAddrPort(netip.AddrPortFrom(self, 0)))
		if err == nil {
			_, err = c.WriteToUDPAddrPort([]byte("six"), netip.AddrPortFrom(other, testPort))
		}
		return err
	})
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	port := c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	as, err := w.av.Insert([][]byte{cq.Sockaddr(netip.AddrPortFrom(seen, port))})
	must(t, err)
	var es []cq.Entry
	w.await(t, "the arrival", func() bool { es = w.read(t); return len(es) > 0 })
	if es[0].Src.Addr() != as[0] || w.text(t, &es[0]) != "six" {
		t.Errorf("%+v, %q", es[0], w.text(t, &es[0]))
	}
	must(t, w.persist(t, func() error {
		return w.Forward(&es[0], 3, &endpoint.Msg{To: as[0]})
	}))
	buf := make([]byte, 16)
	n, from, err := c.ReadFromUDPAddrPort(buf)
	if err != nil || string(buf[:n]) != "six" || from.Addr() != other || from.Port() != testPort {
		t.Errorf("%q from %v, %v", buf[:n], from, err)
	}
	w.await(t, "the completion", func() bool { return len(w.read(t)) == 1 })
}
