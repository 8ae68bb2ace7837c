package route

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
)

// TestNeighbourLearned: a neighbour that the kernel does not know is resolved by it.
func TestNeighbourLearned(t *testing.T) {
	shmtest.Conforms(t)
	p := forgetful(t)
	table := openTable(t, p.A, Options{Attempt: time.Minute})
	if _, err := table.Lookup(p.B.Addr); err != packet.ErrResolving ||
		!errors.Is(err, syscall.EAGAIN) {
		t.Fatal(err)
	}
	hop := mustResolve(t, table, p.B.Addr)
	want := packet.Hop{LocalMAC: [6]byte(p.A.MAC), NextMAC: [6]byte(p.B.MAC), Source: p.A.Addr,
		MTU: 1500, Generation: hop.Generation}
	if hop != want {
		t.Errorf("%+v, want %+v", hop, want)
	}
	if s := table.Stats(); s.Solicits != 1 {
		t.Errorf("%+v", s)
	}
}

// TestNeighbourPermanent: what is known needs nobody to be asked.
func TestNeighbourPermanent(t *testing.T) {
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	table := openTable(t, p.A, Options{Attempt: 10 * time.Millisecond, Refresh: 20 * time.Millisecond})
	first := mustResolve(t, table, p.B.Addr)
	gen := table.Generation()
	for i := range 5 {
		for table.Generation() == gen {
			time.Sleep(time.Millisecond)
		}
		gen = table.Generation()
		if hop, err := table.Lookup(p.B.Addr); err != nil || hop != first {
			t.Errorf("refresh %d: %+v, %v", i, hop, err)
		}
	}
	if s := table.Stats(); s.Solicits != 0 {
		t.Errorf("%+v", s)
	}
}

// TestNeighbourFailed: a neighbour that does not answer is EHOSTUNREACH after one solicitation, and
// is found when it comes.
func TestNeighbourFailed(t *testing.T) {
	shmtest.Conforms(t)
	p := forgetful(t)
	setting(t, p.A, "ipv4/neigh/"+p.A.Name+"/retrans_time_ms", 20)
	setting(t, p.A, "ipv4/neigh/"+p.A.Name+"/mcast_solicit", 1)
	dst := addr("192.0.2.77")
	table := openTable(t, p.A, Options{Attempt: time.Hour})
	_, err := resolve(t, table, dst)
	if err != packet.ErrUnreachable || !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Fatal(err)
	}
	for range 1000 {
		if _, err := table.Lookup(dst); err != packet.ErrUnreachable {
			t.Fatal(err)
		}
	}
	if s := table.Stats(); s.Solicits != 1 {
		t.Errorf("%+v", s)
	}

	eager := openTable(t, p.A, Options{Attempt: 50 * time.Millisecond})
	_, err = resolve(t, eager, dst)
	if err != packet.ErrUnreachable {
		t.Fatal(err)
	}
	xdptest.Do(t, p.B, func() error {
		l, err := netlink.LinkByName(p.B.Name)
		if err == nil {
			err = netlink.AddrAdd(l, &netlink.Addr{IPNet: network("192.0.2.77/24")})
		}
		return err
	})
	for deadline := time.Now().Add(hang); ; time.Sleep(time.Millisecond) {
		hop, err := eager.Lookup(dst)
		if err == nil && hop.NextMAC == [6]byte(p.B.MAC) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err, hop)
		}
	}
	// The other table asked nobody and heard of it all the same.
	await(t, table, dst, "the other table", func(_ packet.Hop, err error) bool { return err == nil })
	if s := table.Stats(); s.Solicits != 1 {
		t.Errorf("%+v", s)
	}
}

// TestNeighbourChanges: another hardware address is another generation; an entry that the kernel
// drops is resolved again.
func TestNeighbourChanges(t *testing.T) {
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	table := openTable(t, p.A, Options{})
	before := mustResolve(t, table, p.B.Addr)
	other := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	xdptest.Do(t, p.A, func() error {
		return netlink.NeighSet(neigh(p.A, p.B.Addr, other, netlink.NUD_PERMANENT))
	})
	after := await(t, table, p.B.Addr, "another address", func(h packet.Hop, err error) bool {
		return h.NextMAC == [6]byte(other)
	})
	if after.Generation == before.Generation {
		t.Errorf("%+v, then %+v", before, after)
	}
	xdptest.Do(t, p.A, func() error {
		return netlink.NeighDel(neigh(p.A, p.B.Addr, other, 0))
	})
	await(t, table, p.B.Addr, "resolved again", func(h packet.Hop, err error) bool {
		return err == nil && h.NextMAC == [6]byte(p.B.MAC)
	})
}

// TestNeighbourStale: a stale entry is used, and the kernel is asked to look after it for as long
// as somebody uses it.
func TestNeighbourStale(t *testing.T) {
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	setting(t, p.A, "ipv4/neigh/"+p.A.Name+"/delay_first_probe_time", 0)
	xdptest.Do(t, p.A, func() error {
		return netlink.NeighSet(neigh(p.A, p.B.Addr, p.B.MAC, netlink.NUD_STALE))
	})
	table := openTable(t, p.A, Options{Attempt: 20 * time.Millisecond, Refresh: 40 * time.Millisecond})
	if hop := mustResolve(t, table, p.B.Addr); hop.NextMAC != [6]byte(p.B.MAC) {
		t.Errorf("%+v", hop)
	}
	state := func() (state int) {
		xdptest.Do(t, p.A, func() error {
			all, err := netlink.NeighList(p.A.Index, netlink.FAMILY_V4)
			for _, n := range all {
				if a, _ := netip.AddrFromSlice(n.IP.To4()); a == p.B.Addr {
					state = n.State
				}
			}
			return err
		})
		return state
	}
	for range 2 {
		for deadline := time.Now().Add(hang); state() != netlink.NUD_REACHABLE; {
			if _, err := table.Lookup(p.B.Addr); err != nil {
				t.Fatal(err)
			}
			if time.Now().After(deadline) {
				t.Fatalf("state %#x; %+v", state(), table.Stats())
			}
			time.Sleep(5 * time.Millisecond)
		}
		xdptest.Do(t, p.A, func() error {
			return netlink.NeighSet(neigh(p.A, p.B.Addr, p.B.MAC, netlink.NUD_STALE))
		})
	}
}

// TestStaticAndLearned: an address that was added counts before the kernel's, one that was learnt
// from a packet after it.
func TestStaticAndLearned(t *testing.T) {
	p := xdptest.NewPair(t, veth.Config{})
	table := openTable(t, p.A, Options{})
	static, learned := [6]byte{2, 1}, [6]byte{2, 2}
	table.Learn(p.B.Addr, learned)
	if hop := mustResolve(t, table, p.B.Addr); hop.NextMAC != [6]byte(p.B.MAC) {
		t.Errorf("learned: %+v", hop)
	}
	table.Add(p.B.Addr, static)
	if hop := mustResolve(t, table, p.B.Addr); hop.NextMAC != static || hop.Source != p.A.Addr {
		t.Errorf("static: %+v", hop)
	}
	table.Remove(p.B.Addr)
	xdptest.Do(t, p.A, func() error { return netlink.NeighDel(neigh(p.A, p.B.Addr, p.B.MAC, 0)) })
	await(t, table, p.B.Addr, "the kernel's", func(h packet.Hop, err error) bool {
		return err == nil && h.NextMAC == [6]byte(p.B.MAC)
	})

	dst := addr("192.0.2.99")
	for _, mac := range [][6]byte{{}, {1, 2, 3}} {
		table.Learn(dst, mac)
	}
	if _, err := table.Lookup(dst); err != packet.ErrResolving {
		t.Error(err)
	}
	table.Learn(dst, learned)
	if hop := mustResolve(t, table, dst); hop.NextMAC != learned || hop.Source != p.A.Addr {
		t.Errorf("%+v", hop)
	}
	table.Learn(addr("::ffff:192.0.2.99"), static)
	if hop := mustResolve(t, table, dst); hop.NextMAC != static {
		t.Errorf("learned again: %+v", hop)
	}

	away := addr("203.0.113.5") // no route
	table.Add(away, static)
	hop := mustResolve(t, table, away)
	if hop.NextMAC != static || hop.Source.IsValid() || hop.MTU != 1500 {
		t.Errorf("no route: %+v", hop)
	}
	table.Remove(away)
	if _, err := resolve(t, table, away); !errors.Is(err, ErrNoRoute) {
		t.Error(err)
	}
}
