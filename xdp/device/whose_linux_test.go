package device_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

// texts returns what an application got before the datagram that says "end".
func texts(t *testing.T, e *device.Endpoint) map[string]bool {
	t.Helper()
	got := map[string]bool{}
	for {
		entry := next(t, e)
		s := text(t, e, &entry)
		if s == "end" {
			return got
		}
		got[s] = true
	}
}

var (
	whoseMACs = map[string][6]byte{"own": {}, "other": {2, 9, 9, 9, 9, 9},
		"broadcast": {255, 255, 255, 255, 255, 255}, "group": {1}}
	whoseAddrs = map[string][2]netip.Addr{ // of either family
		"own":       {{}, netip.MustParseAddr("fd00::2")},
		"other":     {netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("fd00:1::9")},
		"broadcast": {netip.MustParseAddr("192.0.2.255"), netip.MustParseAddr("ff02::1")},
		"limited":   {netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("::")},
		"loopback":  {netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")},
		"joined":    {netip.MustParseAddr("239.1.2.3"), netip.MustParseAddr("ff15::1:203")},
		"unjoined":  {netip.MustParseAddr("239.1.2.4"), netip.MustParseAddr("ff15::1:204")},
	}
	whoseTags = map[string][]packet.Tag{"untagged": nil, "priority": {{TCI: 0xe000}},
		"VLAN": {{TCI: 7}}, "VLAN behind a priority": {{Kind: 0x88a8, TCI: 0xe000}, {TCI: 7}}}
)

// forwarding makes end B a router of both families with a second interface, in promiscuous mode, so
// that the kernel sees what it may forward; and has it join the groups.
func forwarding(t *testing.T, r *rig) {
	t.Helper()
	xdptest.AddIPv6(t, r.pair, netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"))
	xdptest.Do(t, r.pair.B, func() error {
		for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0); err != nil {
				return err
			}
		}
		l, err := netlink.LinkByName(r.pair.B.Name)
		if err != nil {
			return err
		}
		if err := netlink.SetPromiscOn(l); err != nil {
			return err
		}
		ifi, err := net.InterfaceByName(r.pair.B.Name)
		if err != nil {
			return err
		}
		for i, a := range whoseAddrs["joined"] {
			c, err := net.ListenMulticastUDP([]string{"udp4", "udp6"}[i], ifi,
				&net.UDPAddr{IP: a.AsSlice()})
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = c.Close() })
		}
		return nil
	})
}

// TestWhoseFrames: an application gets the frames to its port that are for the interface itself,
// and the kernel all others, on a router and in promiscuous mode too; one whose user the operator
// allows more gets all.
func TestWhoseFrames(t *testing.T) {
	t.Parallel()
	for _, every := range []bool{false, true} {
		t.Run(fmt.Sprintf("any=%v", every), func(t *testing.T) {
			r := newRig(t, device.Config{Allow: []device.Allow{{ID: uint32(os.Geteuid()), Any: every}}})
			forwarding(t, r)
			e := r.dial(device.Request{Ports: []uint16{5000}})
			w := xdptest.NewRaw(t, r.pair)
			own := [6]byte(r.pair.B.MAC)
			for _, a := range whoseAddrs["joined"] { // until the groups are known
				await(t, "the group", func() bool { return device.HasLocal(r.server, a) })
			}
			await(t, "the IPv6 address", func() bool {
				return device.HasLocal(r.server, whoseAddrs["own"][1])
			})
			want, kernel := map[string]bool{}, 0
			for macName, mac := range whoseMACs {
				for addrName, addrs := range whoseAddrs {
					for family, addr := range addrs {
						for tagName, tags := range whoseTags {
							if addrName == "own" && family == 0 {
								addr = r.pair.B.Addr
							}
							group, isGroup := packet.MulticastMAC(addr)
							switch {
							case macName == "own":
								mac = own
							case macName == "group" && isGroup:
								mac = group
							}
							name := fmt.Sprintf("%s MAC, %s address %v, %s", macName, addrName, addr, tagName)
							untagged := tagName == "untagged" || tagName == "priority"
							// ff02::1 is a group that each interface is in.
							joined := addrName == "joined" || addrName == "broadcast" && family == 1
							mine := untagged && (macName == "own" && addrName == "own" ||
								macName == "group" && joined)
							if mine || every {
								want[name] = true
							} else {
								kernel++
							}
							w.Send(w.Frame(mac, netip.AddrPortFrom(addr, 5000), tags, name))
						}
					}
				}
			}
			w.Send(w.Frame(own, r.target(5000), nil, "end"))
			got := texts(t, e)
			for name := range want {
				if !got[name] {
					t.Errorf("lacks %s", name)
				}
			}
			for name := range got {
				if !want[name] {
					t.Errorf("got %s", name)
				}
			}
			c := shmtest.Got(device.ProgramOf(r.server).Counters()).Or(t)
			if c.Redirected != uint64(len(want))+1 || c.OtherPort < uint64(kernel) {
				t.Errorf("%d are the application's, %d the kernel's: %+v", len(want), kernel, c)
			}
		})
	}
}

// TestTransitIsForwarded: a datagram that the kernel forwards goes its way past an application that
// has its port.
func TestTransitIsForwarded(t *testing.T) {
	t.Parallel()
	r := newRig(t, device.Config{})
	forwarding(t, r)
	r.dial(device.Request{Ports: []uint16{5000}})
	beyond := netip.MustParseAddr("203.0.113.1")
	var out netlink.Link
	xdptest.Do(t, r.pair.B, func() error { // a second interface, which takes all that is sent to it
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "beyond"
		v := netlink.NewVeth(attrs)
		v.PeerName = "end"
		if err := netlink.LinkAdd(v); err != nil {
			return err
		}
		end, err := netlink.LinkByName("end")
		if err != nil {
			return err
		}
		if out, err = netlink.LinkByName("beyond"); err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(out), netlink.LinkSetUp(end),
			netlink.AddrAdd(out, &netlink.Addr{
				IPNet: &net.IPNet{IP: net.IPv4(203, 0, 113, 2), Mask: net.CIDRMask(24, 32)}}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: out.Attrs().Index, Family: unix.AF_INET,
				State: netlink.NUD_PERMANENT, IP: beyond.AsSlice(),
				HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}}))
	})
	w := xdptest.NewRaw(t, r.pair)
	await(t, "the kernel forwards", func() bool { // as soon as that interface has a carrier
		w.Send(w.Frame([6]byte(r.pair.B.MAC), netip.AddrPortFrom(beyond, 5000), nil, "transit"))
		xdptest.Do(t, r.pair.B, func() (err error) {
			out, err = netlink.LinkByName("beyond")
			return err
		})
		return out.Attrs().Statistics.TxPackets >= 5
	})
}

// TestAddressesFollowed: an application gets what is for an address that came after it, and no more
// once the address is gone; what was steered all the same is not handed out.
func TestAddressesFollowed(t *testing.T) {
	t.Parallel()
	r := newRig(t, device.Config{})
	e := r.dial(device.Request{Ports: []uint16{5000}})
	w := xdptest.NewRaw(t, r.pair)
	late := netip.MustParseAddr("198.51.100.2")
	to := netip.AddrPortFrom(late, 5000)
	own := [6]byte(r.pair.B.MAC)
	address := &netlink.Addr{IPNet: &net.IPNet{IP: late.AsSlice(), Mask: net.CIDRMask(32, 32)}}
	change := func(f func(netlink.Link, *netlink.Addr) error, there bool) {
		must(t, r.pair.B.Change(func(l netlink.Link) error { return f(l, address) }))
		await(t, "the server knows", func() bool { return device.HasLocal(r.server, late) == there })
	}
	try := func(say string, want bool) {
		t.Helper()
		w.Send(w.Frame(own, to, nil, say))
		w.Send(w.Frame(own, r.target(5000), nil, "end"))
		if got := texts(t, e); got[say] != want {
			t.Errorf("%s: got %v", say, got)
		}
	}
	try("before", false)
	change(netlink.AddrAdd, true)
	try("there", true)
	change(netlink.AddrDel, false)
	try("gone", false)
	if s := r.server.Stats(); s.Foreign != 0 {
		t.Errorf("%d came that are not the interface's", s.Foreign)
	}
	shmtest.Got(device.ProgramOf(r.server).AddRule(xdp.Rule{Dst: netip.PrefixFrom(late, 32),
		UDPPort: 5000}, xdp.Target{})).Or(t)
	try("steered", false)
	await(t, "the count", func() bool { return r.server.Stats().Foreign == 1 })
}

// TestChecksums: datagrams with a wrong UDP checksum are dropped and counted, for the application
// and for tools, unless it asked for them: then they are marked. What has no sum
// where it needs none, or that of the pseudo header as veth leaves it, is handed out.
func TestChecksums(t *testing.T) {
	t.Parallel()
	dir := shmtest.Got(shm.OpenDir("")).Or(t)
	t.Cleanup(func() { must(t, dir.Close()) })
	for _, wanted := range []bool{false, true} {
		t.Run(fmt.Sprintf("wanted=%v", wanted), func(t *testing.T) {
			r := newRig(t, device.Config{})
			six := netip.MustParseAddr("fd00::2")
			xdptest.AddIPv6(t, r.pair, netip.MustParseAddr("fd00::1"), six)
			await(t, "the IPv6 address", func() bool { return device.HasLocal(r.server, six) })
			e := r.dial(device.Request{Ports: []uint16{5000}, WrongChecksums: wanted})
			w := xdptest.NewRaw(t, r.pair)
			own := [6]byte(r.pair.B.MAC)
			const v4Sum, v6Sum, ipSum = 14 + 20 + 6, 14 + 40 + 6, 14 + 10
			want, wrong := map[string]uint16{}, map[string]bool{}
			for _, c := range []struct {
				name  string
				six   bool
				at    int // of what is changed
				zero  bool
				flags uint16
			}{
				{"right", false, 0, false, xdp.RecordChecksumOK},
				{"right v6", true, 0, false, xdp.RecordChecksumOK},
				{"none", false, v4Sum, true, 0},
				{"wrong", false, v4Sum, false, xdp.RecordChecksumWrong},
				{"wrong v6", true, v6Sum, false, xdp.RecordChecksumWrong},
				{"none v6", true, v6Sum, true, xdp.RecordChecksumWrong},
				{"wrong header", false, ipSum, false, 1 << 15}, // never
			} {
				to := r.target(5000)
				if c.six {
					to = netip.AddrPortFrom(six, 5000)
				}
				b := w.Frame(own, to, nil, c.name)
				switch {
				case c.zero:
					b[c.at], b[c.at+1] = 0, 0
				case c.at > 0:
					b[c.at] ^= 0x55
				}
				if c.flags == xdp.RecordChecksumWrong {
					wrong[c.name] = true
				}
				if c.flags != 1<<15 && (wanted || !wrong[c.name]) {
					want[c.name] = c.flags
				}
				w.Send(b)
			}
			shmtest.Got(r.peer(6000).WriteToUDPAddrPort([]byte("partial"), r.target(5000))).Or(t)
			want["partial"] = 0
			got := map[string]uint16{}
			for len(got) < len(want) {
				entry := next(t, e)
				rec := shmtest.Got(e.Record(&entry)).Or(t)
				got[text(t, e, &entry)] = rec.Flags
			}
			if !maps.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			bad := uint64(len(wrong))
			if wanted {
				bad = 0
			}
			await(t, "the counts", func() bool {
				s, seen := r.server.Stats(), uint64(0)
				all := shmtest.Got(status.List(dir)).Or(t)
				for _, one := range all {
					seen += one.Counters.Traffic.BadChecksum
				}
				return s.BadChecksum == bad && s.Malformed == 1 && len(s.Apps) == 1 &&
					s.Apps[0].BadChecksum == bad && e.Stats().BadChecksum == bad && seen == bad &&
					s.Received == s.Delivered+s.Malformed+s.BadChecksum+s.Foreign
			})
		})
	}
}
