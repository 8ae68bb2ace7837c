package route

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
)

// hang is how long something may take that happens at once if all is well.
const hang = time.Minute

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// openTable opens the table of an end for the time of the test.
func openTable(t testing.TB, e *veth.End, o Options) *Table {
	t.Helper()
	var table *Table
	xdptest.Do(t, e, func() (err error) {
		table, err = Open(e.Name, o)
		return err
	})
	t.Cleanup(func() {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	})
	return table
}

// setting writes a sysctl of the end's namespace.
func setting(t testing.TB, e *veth.End, name string, value int) {
	t.Helper()
	xdptest.Do(t, e, func() error {
		return os.WriteFile("/proc/sys/net/"+name, fmt.Append(nil, value), 0)
	})
}

func resolve(t testing.TB, table *Table, dst netip.Addr) (packet.Hop, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	return table.Resolve(ctx, dst)
}

func mustResolve(t testing.TB, table *Table, dst netip.Addr) packet.Hop {
	t.Helper()
	hop, err := resolve(t, table, dst)
	if err != nil {
		t.Fatalf("%v: %v; %+v", dst, err, table.Stats())
	}
	return hop
}

// await looks dst up again each time that the generation moved, until ok says so.
func await(t testing.TB, table *Table, dst netip.Addr, what string,
	ok func(packet.Hop, error) bool) packet.Hop {
	t.Helper()
	for deadline := time.Now().Add(hang); ; {
		gen := table.Generation()
		hop, err := table.Lookup(dst)
		if ok(hop, err) {
			return hop
		}
		for table.Generation() == gen {
			if time.Now().After(deadline) {
				t.Fatalf("%s: never: %+v, %v; %+v", what, hop, err, table.Stats())
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func neigh(e *veth.End, ip netip.Addr, mac net.HardwareAddr, state int) *netlink.Neigh {
	family := unix.AF_INET
	if ip.Is6() {
		family = unix.AF_INET6
	}
	return &netlink.Neigh{LinkIndex: e.Index, Family: family, State: state, IP: ip.AsSlice(),
		HardwareAddr: mac}
}

func network(s string) *net.IPNet {
	p := netip.MustParsePrefix(s)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// forgetful makes a pair whose A does not know B's hardware address.
func forgetful(t testing.TB) *veth.Pair {
	t.Helper()
	p := xdptest.NewPair(t, veth.Config{})
	xdptest.Do(t, p.A, func() error {
		return netlink.NeighDel(neigh(p.A, p.B.Addr, p.B.MAC, 0))
	})
	return p
}
