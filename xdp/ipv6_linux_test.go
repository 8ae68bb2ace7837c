package xdp_test

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
)

var (
	sixA = netip.MustParseAddr("fd00::a")
	sixB = netip.MustParseAddr("fd00::b")
)

// forget removes what an end knows of a neighbour.
func forget(t testing.TB, e *veth.End, addr netip.Addr) {
	t.Helper()
	xdptest.Do(t, e, func() error {
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: e.Index, IP: addr.AsSlice()})
	})
}
