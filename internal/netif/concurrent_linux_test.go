package netif

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

// TestConcurrent: lookups and changes of the kernel go on beside each other until Close;
// no lookup ever sees a hop that is half of one and half of another, and each has a generation of
// its own.
func TestConcurrent(t *testing.T) {
	p := xdptest.NewPair(t, veth.Config{})
	table := openTable(t, p.A, TableOptions{Attempt: time.Millisecond, Refresh: 5 * time.Millisecond})
	before := mustResolve(t, table, p.B.Addr)
	macs := []net.HardwareAddr{{2, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 2, 2}}
	var users sync.WaitGroup
	for i := range 4 {
		users.Go(func() {
			seen := map[uint64]xdp.Hop{}
			other := p.B.Addr
			for n := 0; ; n++ {
				hop, err := table.Lookup(p.B.Addr)
				if errors.Is(err, os.ErrClosed) {
					return
				}
				if err == nil {
					if old, ok := seen[hop.Generation]; ok && old != hop {
						t.Errorf("%+v and %+v", old, hop)
					}
					seen[hop.Generation] = hop
					m := hop.NextMAC
					if m != before.NextMAC && (m[1] != m[2] || m[2] != m[5]) {
						t.Errorf("%+v", hop)
					}
				}
				if other = other.Next(); n%64 == 0 {
					other = netip.AddrFrom4([4]byte{192, 0, 2, byte(64 * i)})
				}
				_, _ = table.Lookup(other)
			}
		})
	}
	for i := range 200 {
		xdptest.Do(t, p.A, func() error {
			return netlink.NeighSet(neigh(p.A, p.B.Addr, macs[i%2], netlink.NUD_PERMANENT))
		})
	}
	last := [6]byte(macs[1])
	await(t, table, p.B.Addr, "the last change", func(h xdp.Hop, _ error) bool {
		return h.NextMAC == last
	})
	if err := table.Close(); err != nil {
		t.Error(err)
	}
	users.Wait()
}

// BenchmarkLookup is what a datagram costs whose sender looks its way up each time, and what it
// costs to see that nothing changed.
func BenchmarkLookup(b *testing.B) {
	p := xdptest.NewPair(b, veth.Config{})
	table := openTable(b, p.A, TableOptions{})
	mustResolve(b, table, p.B.Addr)
	b.Run("lookup", func(b *testing.B) {
		for b.Loop() {
			if _, err := table.Lookup(p.B.Addr); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("generation", func(b *testing.B) {
		gen := table.Generation()
		for b.Loop() {
			if table.Generation() != gen {
				gen = table.Generation()
			}
		}
	})
}
