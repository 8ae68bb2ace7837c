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
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

// scripted returns a table whose interface is up and whose first dump found nothing.
func scripted(t testing.TB, o TableOptions) (*Table, *script) {
	t.Helper()
	s := newScript()
	s.silent = true
	table := newTable(s, ourIndex, o)
	table.askAll()
	pump(t, table, 1)
	dump := s.take(unix.RTM_GETNEIGH)
	table.handle(linkMessage(0, 0, unix.IFF_UP|unix.IFF_RUNNING, 1500))
	table.handle(doneMessage(dump[0].Seq, 0))
	if table.starting() || table.fault != nil {
		t.Fatal("not started")
	}
	pump(t, table, 2)
	s.asked = nil
	return table, s
}

func pump(t testing.TB, table *Table, now int64) {
	t.Helper()
	must(t, table.pump(now))
}

// answerRoutes answers all questions for routes: directly by our interface.
func answerRoutes(table *Table, s *script) int {
	asked := s.take(unix.RTM_GETROUTE)
	for _, m := range asked {
		table.handle(routeMessage(m.Seq, ourPort, ourIndex))
	}
	return len(asked)
}

// TestOneSolicitPerAttempt: however often is looked, the kernel is asked once each attempt.
func TestOneSolicitPerAttempt(t *testing.T) {
	t.Parallel()
	const attempt = int64(time.Second)
	table, s := scripted(t, TableOptions{Attempt: time.Duration(attempt)})
	dst, now := addr("192.0.2.2"), int64(3e9)
	look := func() {
		for range 10 {
			if _, err := table.Lookup(dst); err != packet.ErrResolving {
				t.Fatal(err)
			}
			pump(t, table, now)
		}
	}
	look()
	answerRoutes(table, s)
	for i := range 5 {
		for range 10 { // ten looks an attempt
			look()
			now += attempt / 10
			if i%2 == 1 {
				// An impatient clock asks no earlier.
				table.advance(now)
			}
		}
		table.advance(now)
		if n := len(s.take(unix.RTM_NEWNEIGH)); n != 1 {
			t.Errorf("attempt %d: %d solicitations", i, n)
		}
	}
	table.handle(neighbourMessage(unix.RTM_NEWNEIGH, 0, 0, 0, dst, unix.NUD_REACHABLE,
		2, 0, 0, 0, 0, 2))
	if hop, err := table.Lookup(dst); err != nil || hop.NextMAC != [6]byte{2, 0, 0, 0, 0, 2} {
		t.Error(hop, err)
	}
	now += attempt
	table.advance(now)
	pump(t, table, now)
	if n := len(s.take(unix.RTM_NEWNEIGH)); n != 0 {
		t.Errorf("%d solicitations of what is known", n)
	}
}

// TestStates: which states of a neighbour are an answer.
func TestStates(t *testing.T) {
	t.Parallel()
	table, s := scripted(t, TableOptions{})
	dst := addr("192.0.2.2")
	_, _ = table.Lookup(dst)
	pump(t, table, 3)
	answerRoutes(table, s)
	for state, want := range map[uint16]error{unix.NUD_NONE: packet.ErrResolving,
		unix.NUD_INCOMPLETE: packet.ErrResolving, unix.NUD_REACHABLE: nil, unix.NUD_STALE: nil,
		unix.NUD_DELAY: nil, unix.NUD_PROBE: nil, unix.NUD_PERMANENT: nil, unix.NUD_NOARP: nil,
		unix.NUD_FAILED: packet.ErrUnreachable} {
		gen := table.Generation()
		mac := []byte{2, 0, 0, 0, byte(state >> 8), byte(state)}
		table.handle(neighbourMessage(unix.RTM_NEWNEIGH, 0, 0, 0, dst, state, mac...))
		hop, err := table.Lookup(dst)
		if err != want || err == nil && hop.NextMAC != [6]byte(mac) {
			t.Errorf("state %#x: %+v, %v", state, hop, err)
		}
		if err == nil && (table.Generation() == gen || hop.Generation != table.Generation()) {
			t.Errorf("state %#x: generation %d, hop %d, before %d", state, table.Generation(),
				hop.Generation, gen)
		}
		gen = table.Generation()
		table.handle(neighbourMessage(unix.RTM_NEWNEIGH, 0, 0, 0, dst, state, mac...))
		if table.Generation() != gen {
			t.Errorf("state %#x: no news, and another generation", state)
		}
	}
	// What is not about us: another interface, another address, a proxy entry.
	want, _ := table.Lookup(dst)
	other := &netlink.Ndmsg{Family: unix.AF_INET, Index: ourIndex + 1, State: unix.NUD_PERMANENT}
	proxy := &netlink.Ndmsg{Family: unix.AF_INET, Index: ourIndex, State: unix.NUD_PERMANENT,
		Flags: unix.NTF_PROXY}
	for _, nd := range []*netlink.Ndmsg{other, proxy} {
		table.handle(datagram(unix.RTM_NEWNEIGH, 0, 0, 0, nd, nl.NewRtAttr(unix.NDA_DST,
			dst.AsSlice()), nl.NewRtAttr(unix.NDA_LLADDR, []byte{2, 9, 9, 9, 9, 9})))
	}
	if got, _ := table.Lookup(dst); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestTableLost: when messages were lost everything is asked for again, and what went meanwhile
// goes.
func TestTableLost(t *testing.T) {
	t.Parallel()
	table, s := scripted(t, TableOptions{})
	dst, gone := addr("192.0.2.2"), addr("192.0.2.3")
	for _, a := range []netip.Addr{dst, gone} {
		_, _ = table.Lookup(a)
		table.handle(neighbourMessage(unix.RTM_NEWNEIGH, 0, 0, 0, a, unix.NUD_REACHABLE,
			2, 0, 0, 0, 0, 2))
	}
	pump(t, table, 3)
	answerRoutes(table, s)
	before := mustLookup(t, table, dst)
	table.resync()
	pump(t, table, 1e9)
	var kinds []uint16
	for _, m := range s.asked {
		kinds = append(kinds, m.Type)
	}
	dump := s.asked[1]
	if len(kinds) != 4 || kinds[0] != unix.RTM_GETLINK || kinds[1] != unix.RTM_GETNEIGH ||
		kinds[2] != unix.RTM_GETROUTE || kinds[3] != unix.RTM_GETROUTE {
		t.Fatal(kinds)
	}
	if got := mustLookup(t, table, dst); got != before {
		t.Errorf("meanwhile: %+v", got)
	}
	// The first dump is interrupted, which counts for nothing.
	table.handle(neighbourMessage(unix.RTM_NEWNEIGH, dump.Seq, ourPort,
		unix.NLM_F_MULTI|unix.NLM_F_DUMP_INTR, gone, unix.NUD_REACHABLE, 2, 0, 0, 0, 0, 2))
	table.handle(doneMessage(dump.Seq, 0))
	answerRoutes(table, s)
	pump(t, table, 2e9)
	again := s.take(unix.RTM_GETNEIGH)
	if len(again) != 1 {
		t.Fatal(again)
	}
	table.handle(neighbourMessage(unix.RTM_NEWNEIGH, again[0].Seq, ourPort, unix.NLM_F_MULTI, dst,
		unix.NUD_REACHABLE, 2, 0, 0, 0, 0, 2))
	table.handle(doneMessage(again[0].Seq, 0))
	if got := mustLookup(t, table, dst); got != before {
		t.Errorf("%+v, before %+v", got, before)
	}
	if _, err := table.Lookup(gone); err != packet.ErrResolving {
		t.Error(err)
	}
	if table.Stats().Resyncs != 1 {
		t.Errorf("%+v", table.Stats())
	}
}

func mustLookup(t testing.TB, table *Table, dst netip.Addr) xdp.Hop {
	t.Helper()
	return shmtest.Got(table.Lookup(dst)).Or(t)
}

// TestQuestionsBounded: a thousand destinations are not asked for at once, and an answer that does
// not come is asked for again.
func TestQuestionsBounded(t *testing.T) {
	t.Parallel()
	table, s := scripted(t, TableOptions{})
	a := addr("10.0.0.0")
	for range 1000 {
		a = a.Next()
		_, _ = table.Lookup(a)
	}
	total, now := 0, int64(3)
	pump(t, table, now)
	if n := len(s.take(unix.RTM_GETROUTE)); n != maxAsked {
		t.Error(n)
	}
	now += patienceNs // and no answer
	table.advance(now)
	for total < 1000 {
		pump(t, table, now)
		n := answerRoutes(table, s)
		if n == 0 || n > maxAsked {
			t.Fatal(n, total)
		}
		total += n
	}
	if s := table.Stats(); s.Unanswered != maxAsked || s.RouteQuestions != 1000+maxAsked {
		t.Errorf("%+v", s)
	}
	// A storm of changes is one more round, or two.
	for range 100 {
		table.handle(routeMessage(9, 5555, 1))
	}
	for pump(t, table, now+1e9); answerRoutes(table, s) > 0; pump(t, table, now+1e9) {
	}
	if s := table.Stats(); s.RouteQuestions != 2000+maxAsked {
		t.Errorf("%+v", s)
	}
}

// TestUnsent: requests that the kernel has no memory for come again after a moment, not before.
func TestUnsent(t *testing.T) {
	t.Parallel()
	table, s := scripted(t, TableOptions{})
	_, _ = table.Lookup(addr("192.0.2.2"))
	s.refuse = errBusy
	table.again(table.pump(3))
	s.take(0)
	s.refuse = nil
	if pump(t, table, 4); len(s.asked) != 0 {
		t.Errorf("%+v", s.asked)
	}
	table.advance(1e9)
	pump(t, table, 1e9)
	if n := len(s.asked); n != 3 { // link, neighbours and the route
		t.Errorf("%d requests: %+v", n, s.asked)
	}
	s.refuse = unix.EINVAL
	table.resync()
	table.again(table.pump(2e9))
	if _, err := table.Lookup(addr("192.0.2.2")); !errors.Is(err, unix.EINVAL) {
		t.Error(err)
	}
}

// TestForgotten: what nobody uses is forgotten, neighbours that only it needed too.
func TestForgotten(t *testing.T) {
	t.Parallel()
	table, s := scripted(t, TableOptions{Attempt: time.Second, Refresh: time.Second})
	used, idle := addr("192.0.2.2"), addr("192.0.2.3")
	_, _ = table.Lookup(idle)
	for i := range int64(20) {
		now := i * 1e9
		_, _ = table.Lookup(used)
		pump(t, table, now)
		answerRoutes(table, s)
		table.advance(now)
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
	dst := addr("192.0.2.2")
	_, _ = table.Lookup(dst)
	pump(t, table, 3)
	answerRoutes(table, s)
	pump(t, table, 4)
	asked := s.take(unix.RTM_NEWNEIGH)
	table.handle(errorMessage(asked[0].Seq, unix.EPERM))
	if _, err := table.Lookup(dst); !errors.Is(err, ErrNotAllowed) || !errors.Is(err, unix.EPERM) {
		t.Error(err)
	}
	table.handle(neighbourMessage(unix.RTM_NEWNEIGH, 0, 0, 0, dst, unix.NUD_STALE,
		2, 0, 0, 0, 0, 2))
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
