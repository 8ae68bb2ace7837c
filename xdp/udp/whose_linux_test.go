package udp_test

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp/udp"
)

// texts are the datagrams of a connection before the one that says "end".
func texts(t *testing.T, c *udp.Conn) map[string]bool {
	t.Helper()
	got, buf := map[string]bool{}, make([]byte, 100)
	must(t, c.SetReadDeadline(time.Now().Add(long)))
	for {
		n, _, err := c.ReadFromUDPAddrPort(buf)
		must(t, err)
		if string(buf[:n]) == "end" {
			return got
		}
		got[string(buf[:n])] = true
	}
}

// TestWhoseDatagrams: a connection on no address gets what is for the interface itself, and one on
// an address what is untagged and for that. Options.Any takes what comes for the port.
func TestWhoseDatagrams(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	six := netip.MustParseAddr("fd00::2")
	xdptest.AddIPv6(t, p, netip.MustParseAddr("fd00::1"), six)
	w, own := xdptest.NewRaw(t, p), [6]byte(p.B.MAC)
	other := [6]byte{2, 9, 9, 9, 9, 9}
	v4, v6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	vlan := []packet.Tag{{TCI: 7}}
	frames := []struct {
		name string
		mac  [6]byte
		to   netip.Addr
		tags []packet.Tag
		// Who gets it: a connection on 0.0.0.0, on ::, and on the address itself.
		four, both, exact bool
	}{
		{"own", own, p.B.Addr, nil, true, true, true},
		{"own priority", own, p.B.Addr, []packet.Tag{{TCI: 0xe000}}, true, true, true},
		{"own v6", own, six, nil, false, true, false},
		{"transit", own, netip.MustParseAddr("203.0.113.1"), nil, false, false, false},
		{"transit v6", own, netip.MustParseAddr("fd00:1::9"), nil, false, false, false},
		{"VLAN", own, p.B.Addr, vlan, false, false, false},
		{"VLAN v6", own, six, vlan, false, false, false},
		{"other host's", other, p.B.Addr, nil, false, false, true},
		{"other host's v6", other, six, nil, false, false, false},
		{"unjoined", [6]byte{1, 0, 0x5e, 1, 2, 4}, netip.MustParseAddr("239.1.2.4"), nil, false, false,
			false},
	}
	for _, every := range []bool{false, true} {
		for i, local := range []netip.Addr{v4, v6, p.B.Addr} {
			t.Run(fmt.Sprintf("any=%v %v", every, local), func(t *testing.T) {
				s := openOn(t, p.B, udp.Options{Any: every})
				c := listen(t, s, local, 5000)
				if local == v6 { // from when on the address may be used is the kernel's affair
					await(t, func() bool {
						w.Send(w.Frame(own, netip.AddrPortFrom(six, 5000), nil, "known"))
						must(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
						_, _, err := c.ReadFrom(make([]byte, 8))
						return err == nil
					})
				}
				want := map[string]bool{}
				for _, f := range frames {
					mine := []bool{f.four, f.both, f.exact}[i]
					if every {
						mine = local == v6 || local == v4 && f.to.Is4() || local == f.to
					}
					if mine {
						want[f.name] = true
					}
					w.Send(w.Frame(f.mac, netip.AddrPortFrom(f.to, 5000), f.tags, f.name))
				}
				w.Send(w.Frame(own, netip.AddrPortFrom(p.B.Addr, 5000), nil, "end"))
				got := texts(t, c)
				delete(got, "known")
				if !maps.Equal(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
				must(t, c.Close())
			})
		}
	}
}

// TestAddressesFollowed: a connection on no address gets what is for an address that came after it,
// and no more once the address is gone.
func TestAddressesFollowed(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	w, own := xdptest.NewRaw(t, p), [6]byte(p.B.MAC)
	c := listen(t, openOn(t, p.B, udp.Options{}), netip.IPv4Unspecified(), 5000)
	late, err := netlink.ParseAddr("198.51.100.2/32")
	must(t, err)
	comes := func() bool {
		w.Send(w.Frame(own, netip.MustParseAddrPort("198.51.100.2:5000"), nil, "late"))
		w.Send(w.Frame(own, netip.AddrPortFrom(p.B.Addr, 5000), nil, "end"))
		return texts(t, c)["late"]
	}
	if comes() {
		t.Error("before the address is there")
	}
	change := func(f func(netlink.Link, *netlink.Addr) error) {
		t.Helper()
		must(t, p.B.Change(func(l netlink.Link) error { return f(l, late) }))
	}
	change(netlink.AddrAdd)
	await(t, comes)
	change(netlink.AddrDel)
	await(t, func() bool { return !comes() })
}
