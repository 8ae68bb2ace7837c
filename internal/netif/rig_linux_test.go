package netif

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
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

func TestMain(m *testing.M) {
	shmtest.Main(m, map[string]func(){"unprivileged": unprivilegedChild})
}

// hang is how long something may take that happens at once if all is well.
const hang = time.Minute

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// openTable opens the table of an end for the time of the test.
func openTable(t testing.TB, e *veth.End, o TableOptions) *Table {
	t.Helper()
	return xdptest.Have(e, func() (*Table, error) { return OpenTable(e.Index, o) }).In(t)
}

// setting writes a sysctl of the end's namespace.
func setting(t testing.TB, e *veth.End, name string, value int) {
	t.Helper()
	xdptest.Do(t, e, func() error {
		return os.WriteFile("/proc/sys/net/"+name, fmt.Append(nil, value), 0)
	})
}

// resolve looks dst up until the kernel has answered.
func resolve(t testing.TB, table *Table, dst netip.Addr) (hop xdp.Hop, err error) {
	t.Helper()
	await(t, table, dst, "resolved", func(h xdp.Hop, e error) bool {
		hop, err = h, e
		return err != packet.ErrResolving
	})
	return hop, err
}

func mustResolve(t testing.TB, table *Table, dst netip.Addr) xdp.Hop {
	t.Helper()
	hop, err := resolve(t, table, dst)
	if err != nil {
		t.Fatalf("%v: %v; %+v", dst, err, table.Stats())
	}
	return hop
}

// await looks dst up again each time that the generation moved, or could have, until ok says so.
func await(t testing.TB, table *Table, dst netip.Addr, what string,
	ok func(xdp.Hop, error) bool) xdp.Hop {
	t.Helper()
	for deadline := time.Now().Add(hang); ; {
		gen := table.Generation()
		hop, err := table.Lookup(dst)
		if ok(hop, err) {
			return hop
		}
		for look := time.Now(); table.Generation() == gen; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: never: %+v, %v; %+v", what, hop, err, table.Stats())
			}
			if time.Since(look) > table.opt.Attempt { // what nobody looks up is not asked for again
				break
			}
		}
	}
}

// watched is a watcher whose events are taken from a channel, one at a time.
type watched struct {
	*Watcher
	events chan Event
	done   chan struct{}
	end    sync.Once
}

// watching opens a watcher for the time of the test.
func watching(t testing.TB, o WatchOptions, open func(WatchOptions) (*Watcher, error)) *watched {
	t.Helper()
	w := &watched{events: make(chan Event), done: make(chan struct{})}
	if o.OnEvent == nil {
		o.OnEvent = func(e Event) bool {
			select {
			case w.events <- e:
				return true
			case <-w.done:
				return false
			}
		}
	}
	var err error
	w.Watcher, err = open(o)
	return shmtest.Have(w, err).In(t)
}

func (w *watched) Close() error {
	w.end.Do(func() { close(w.done) })
	return w.Watcher.Close()
}

// watchEnd watches an end.
func watchEnd(t testing.TB, e *veth.End, o WatchOptions) *watched {
	t.Helper()
	return watching(t, o, func(o WatchOptions) (*Watcher, error) {
		return xdptest.Have(e, func() (*Watcher, error) { return Watch(e.Index, o) }).In(t), nil
	})
}

// watchScript watches an interface that there is not.
func watchScript(t testing.TB, s *script, o WatchOptions) *watched {
	t.Helper()
	return watching(t, o, func(o WatchOptions) (*Watcher, error) { return watch(s, ourIndex, o) })
}

// ended returns why nothing is heard any more.
func (w *watched) ended() error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.fault
}

// event takes the next event.
func (w *watched) event(t testing.TB) (e Event) {
	t.Helper()
	select {
	case e = <-w.events:
	case <-time.After(hang):
		t.Fatalf("no event: %+v", w.State())
	}
	return e
}

// expect takes the next event, which must be want.
func expect(t testing.TB, w *watched, want Event) {
	t.Helper()
	if got := w.event(t); got != want {
		t.Fatalf("%+v, want %+v", got, want)
	}
}

func quiet(t testing.TB, w *watched) {
	t.Helper()
	select {
	case e := <-w.events:
		t.Errorf("%+v", e)
	case <-time.After(20 * time.Millisecond):
	}
}

var eventually = shmtest.Eventually

var must = shmtest.Must

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
	xdptest.Forget(t, p.A)
	return p
}
