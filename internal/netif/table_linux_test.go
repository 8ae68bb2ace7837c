package netif

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

// scripted returns a table whose interface is up.
func scripted(t testing.TB, o TableOptions) (*Table, *script) {
	t.Helper()
	s := newScript()
	table := newTable(s, ourIndex, o)
	must(t, table.start())
	return table, s
}

// look has the worker look.
func look(t testing.TB, table *Table, now int64) {
	t.Helper()
	must(t, table.look(now, false))
}

func mustLookup(t testing.TB, table *Table, dst netip.Addr) xdp.Hop {
	t.Helper()
	return shmtest.Got(table.Lookup(dst)).Or(t)
}

// become has the kernel know a neighbour otherwise, and say so.
func (s *script) become(t testing.TB, table *Table, a netip.Addr, n neighbourState) {
	t.Helper()
	s.neighbours[a] = n
	table.hear(news(unix.RTM_NEWNEIGH, a))
	look(t, table, 9)
}

// TestOneSolicitPerAttempt: however often is looked, the kernel is asked once each attempt.
func TestOneSolicitPerAttempt(t *testing.T) {
	t.Parallel()
	const attempt = int64(time.Second)
	table, s := scripted(t, TableOptions{Attempt: time.Duration(attempt)})
	dst, now := addr("192.0.2.2"), int64(3e9)
	for i := range 5 {
		for range 10 { // ten looks an attempt
			for range 10 {
				if _, err := table.Lookup(dst); err != packet.ErrResolving {
					t.Fatal(err)
				}
				look(t, table, now)
			}
			now += attempt / 10
			if i%2 == 1 {
				// An impatient clock asks no earlier.
				table.advance(now)
			}
		}
		table.advance(now)
		if s.uses != 1 {
			t.Errorf("attempt %d: %d solicitations", i, s.uses)
		}
		s.uses = 0
	}
	s.become(t, table, dst, neighbourState{unix.NUD_REACHABLE, [6]byte{2, 0, 0, 0, 0, 2}, true})
	s.uses = 0
	if hop := mustLookup(t, table, dst); hop.NextMAC != [6]byte{2, 0, 0, 0, 0, 2} {
		t.Error(hop)
	}
	now += attempt
	must(t, table.look(now, true))
	if s.uses != 0 {
		t.Errorf("%d solicitations of what is known", s.uses)
	}
}

// TestStates: which states of a neighbour are an answer.
func TestStates(t *testing.T) {
	t.Parallel()
	table, s := scripted(t, TableOptions{})
	dst := addr("192.0.2.2")
	_, _ = table.Lookup(dst)
	look(t, table, 3)
	for state, want := range map[int]error{unix.NUD_NONE: packet.ErrResolving,
		unix.NUD_INCOMPLETE: packet.ErrResolving, unix.NUD_REACHABLE: nil, unix.NUD_STALE: nil,
		unix.NUD_DELAY: nil, unix.NUD_PROBE: nil, unix.NUD_PERMANENT: nil, unix.NUD_NOARP: nil,
		unix.NUD_FAILED: packet.ErrUnreachable} {
		gen := table.Generation()
		n := neighbourState{state, [6]byte{2, 0, 0, 0, byte(state >> 8), byte(state)}, true}
		s.become(t, table, dst, n)
		hop, err := table.Lookup(dst)
		if err != want || err == nil && hop.NextMAC != n.MAC {
			t.Errorf("state %#x: %+v, %v", state, hop, err)
		}
		if err == nil && (table.Generation() == gen || hop.Generation != table.Generation()) {
			t.Errorf("state %#x: generation %d, hop %d, before %d", state, table.Generation(),
				hop.Generation, gen)
		}
		gen = table.Generation()
		if s.become(t, table, dst, n); table.Generation() != gen {
			t.Errorf("state %#x: no news, and another generation", state)
		}
	}
}

// TestTableLost: when messages were lost everything is asked for again. So it is, some time later,
// when routes have changed: a storm of changes is one more round, or two.
func TestTableLost(t *testing.T) {
	t.Parallel()
	table, s := scripted(t, TableOptions{})
	dst, gone := addr("192.0.2.2"), addr("192.0.2.3")
	for _, a := range []netip.Addr{dst, gone} {
		_, _ = table.Lookup(a)
		s.neighbours[a] = neighbourState{unix.NUD_REACHABLE, [6]byte{2}, true}
	}
	look(t, table, 3)
	before := mustLookup(t, table, dst)
	mustLookup(t, table, gone)
	delete(s.neighbours, gone)
	table.lost()
	if got := mustLookup(t, table, dst); got != before {
		t.Errorf("meanwhile: %+v", got)
	}
	look(t, table, 1e9)
	if got := mustLookup(t, table, dst); got != before {
		t.Errorf("%+v, before %+v", got, before)
	}
	if _, err := table.Lookup(gone); err != packet.ErrResolving || s.routes != 4 {
		t.Error(err, s.routes)
	}
	for range 100 {
		table.hear(news(unix.RTM_NEWROUTE))
		look(t, table, 1e9+1)
	}
	if !table.later || s.routes != 4 {
		t.Errorf("%d questions in a storm", s.routes)
	}
	look(t, table, 2e9)
	if s.routes != 6 {
		t.Errorf("%d questions after a storm", s.routes)
	}
}

// TestUnsent: questions that the kernel has no memory for are put again. What it cannot answer ends
// the table.
func TestUnsent(t *testing.T) {
	t.Parallel()
	table, s := scripted(t, TableOptions{})
	dst := addr("192.0.2.2")
	_, _ = table.Lookup(dst)
	s.refuse, s.times = unix.ENOBUFS, 1
	if err := table.look(3, false); !busy(err) {
		t.Error(err)
	}
	look(t, table, 4)
	if s.routes != 2 || !table.dests[dst].known {
		t.Errorf("%d questions", s.routes)
	}
	s.refuse, s.times = errors.New("nonsense"), 1
	table.run(-1)
	table.hear(news(unix.RTM_NEWROUTE))
	await(t, table, dst, "the end", func(_ xdp.Hop, err error) bool {
		return errors.Is(err, s.refuse)
	})
	must(t, table.Close())
}

// TestForgotten: what nobody uses is forgotten, neighbours that only it needed too.
func TestForgotten(t *testing.T) {
	t.Parallel()
	table, _ := scripted(t, TableOptions{Attempt: time.Second, Refresh: time.Second})
	used, idle := addr("192.0.2.2"), addr("192.0.2.3")
	_, _ = table.Lookup(idle)
	for i := range int64(20) {
		_, _ = table.Lookup(used)
		must(t, table.look((i+1)*1e9, true))
	}
	if s := table.Stats(); s.Destinations != 1 || s.Neighbours != 1 {
		t.Errorf("%+v", s)
	}
}

// TestNotAllowed: without the privilege to have the kernel resolve, unknown neighbours are an
// error.
func TestNotAllowed(t *testing.T) {
	t.Parallel()
	table, s := scripted(t, TableOptions{})
	s.denied = unix.EPERM
	dst := addr("192.0.2.2")
	_, _ = table.Lookup(dst)
	look(t, table, 3)
	if _, err := table.Lookup(dst); !errors.Is(err, ErrNotAllowed) || !errors.Is(err, unix.EPERM) {
		t.Error(err)
	}
	s.become(t, table, dst, neighbourState{unix.NUD_STALE, [6]byte{2}, true})
	mustLookup(t, table, dst)
}

// TestNeighbourLearned: a neighbour that the kernel does not know is resolved by it.
func TestNeighbourLearned(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	must(t, p.B.Change(func(l netlink.Link) error {
		return netlink.AddrAdd(l, &netlink.Addr{IPNet: network("192.0.2.77/24")})
	}))
	eventually(t, "the neighbour", func() bool {
		hop, err := eager.Lookup(dst)
		return err == nil && hop.NextMAC == [6]byte(p.B.MAC)
	})
	// The other table asked nobody and heard of it all the same.
	await(t, table, dst, "the other table", func(_ xdp.Hop, err error) bool { return err == nil })
	if s := table.Stats(); s.Solicits != 1 {
		t.Errorf("%+v", s)
	}
}

// TestNeighbourChanges: another hardware address is another generation; an entry that the kernel
// drops is resolved again.
func TestNeighbourChanges(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
		eventually(t, "reachable", func() bool {
			mustLookup(t, table, p.B.Addr)
			return state() == netlink.NUD_REACHABLE
		})
		xdptest.Do(t, p.A, func() error {
			return netlink.NeighSet(neigh(p.A, p.B.Addr, p.B.MAC, netlink.NUD_STALE))
		})
	}
}

// TestConcurrent: lookups and changes of the kernel go on beside each other until Close;
// no lookup ever sees a hop that is half of one and half of another, and each has a generation of
// its own.
func TestConcurrent(t *testing.T) {
	t.Parallel()
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
	must(t, table.Close())
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
