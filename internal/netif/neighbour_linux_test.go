package netif

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
	"github.com/shmring/shmring/xdp"
)

// TestNeighbourLearned: a neighbour that the kernel does not know is resolved by it.
func TestNeighbourLearned(t *testing.T) {
	shmtest.Conforms(t)
	p := forgetful(t)
	table := openTable(t, p.A, TableOptions{Attempt: time.Minute})
	if _, err := table.Lookup(p.B.Addr); err != packet.ErrResolving ||
		!errors.Is(err, syscall.EAGAIN) {
		t.Fatal(err)
	}
	hop := mustResolve(t, table, p.B.Addr)
	want := xdp.Hop{LocalMAC: [6]byte(p.A.MAC), NextMAC: [6]byte(p.B.MAC), Source: p.A.Addr,
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
	table := openTable(t, p.A, TableOptions{Attempt: 10 * time.Millisecond,
		Refresh: 20 * time.Millisecond})
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
	table := openTable(t, p.A, TableOptions{Attempt: time.Hour})
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

	eager := openTable(t, p.A, TableOptions{Attempt: 50 * time.Millisecond})
	_, err = resolve(t, eager, dst)
	if err != packet.ErrUnreachable {
		t.Fatal(err)
	}
	change(t, p.B, func(l netlink.Link) error {
		return netlink.AddrAdd(l, &netlink.Addr{IPNet: network("192.0.2.77/24")})
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
	await(t, table, dst, "the other table", func(_ xdp.Hop, err error) bool { return err == nil })
	if s := table.Stats(); s.Solicits != 1 {
		t.Errorf("%+v", s)
	}
}

// TestNeighbourChanges: another hardware address is another generation; an entry that the kernel
// drops is resolved again.
func TestNeighbourChanges(t *testing.T) {
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	table := openTable(t, p.A, TableOptions{})
	before := mustResolve(t, table, p.B.Addr)
	other := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	xdptest.Do(t, p.A, func() error {
		return netlink.NeighSet(neigh(p.A, p.B.Addr, other, netlink.NUD_PERMANENT))
	})
	after := await(t, table, p.B.Addr, "another address", func(h xdp.Hop, err error) bool {
		return h.NextMAC == [6]byte(other)
	})
	if after.Generation == before.Generation {
		t.Errorf("%+v, then %+v", before, after)
	}
	xdptest.Do(t, p.A, func() error {
		return netlink.NeighDel(neigh(p.A, p.B.Addr, other, 0))
	})
	await(t, table, p.B.Addr, "resolved again", func(h xdp.Hop, err error) bool {
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
	table := openTable(t, p.A, TableOptions{Attempt: 20 * time.Millisecond,
		Refresh: 40 * time.Millisecond})
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
