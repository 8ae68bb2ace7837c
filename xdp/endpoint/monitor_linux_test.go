package endpoint_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/netif"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

// newWatched opens an endpoint that follows its interface.
func newWatched(t testing.TB, change func(c *endpoint.Config)) (*wired, *cq.EventQueue) {
	t.Helper()
	events := newEvents(t)
	w := newWired(t, xdp.AttachNative, func(c *endpoint.Config) {
		c.Events, c.Context = events, 55
		c.Watch = &endpoint.WatchOptions{Poll: 10 * time.Millisecond}
		if change != nil {
			change(c)
		}
	})
	return w, events
}

// expect takes the next event, which must be of this kind.
func (w *wired) expect(t testing.TB, events *cq.EventQueue, kind cq.EventKind) cq.Event {
	t.Helper()
	ev := cq.Event{Payload: make([]byte, 0, 16)}
	_, err := events.ReadContext(context.Background(), &ev, cq.ReadOptions{Timeout: patience})
	if err != nil || ev.Event != kind || ev.FID != w.FID() || ev.Context != 55 {
		t.Fatalf("%+v, %v, want %v", ev, err, kind)
	}
	return ev
}

func none(t testing.TB, events *cq.EventQueue) {
	t.Helper()
	var ev cq.Event
	_, err := events.ReadContext(context.Background(), &ev,
		cq.ReadOptions{Timeout: 30 * time.Millisecond})
	if !errors.Is(err, cq.ErrTimedOut) {
		t.Errorf("%+v, %v", ev, err)
	}
}

// TestVethProgramReplaced: an endpoint whose program is gone, or another's, learns of it.
func TestVethProgramReplaced(t *testing.T) {
	shmtest.Conforms(t)
	w, events := newWatched(t, nil)
	none(t, events)
	must(t, w.prog.Close())
	if ev := w.expect(t, events, cq.EventProgram); ev.Data != 0 {
		t.Errorf("detached: %+v", ev)
	}
	other := xdptest.Attach(t, w.pair.B, xdp.ProgramOptions{})
	if ev := w.expect(t, events, cq.EventProgram); ev.Data != uint64(other.Info().ID) {
		t.Errorf("replaced: %+v, want %d", ev, other.Info().ID)
	}
}

// TestVethMTU: how long a datagram can be follows the interface, down and up.
func TestVethMTU(t *testing.T) {
	shmtest.Conforms(t)
	w, events := newWatched(t, nil)
	c, peer := w.kernelSocket(t)
	buf := make([]byte, 4096)
	try := func(n int) error {
		t.Helper()
		err := w.persist(t, func() error { return w.Send(buf[:n], peer, uint64(n)) })
		if err == nil {
			got, _, err := c.ReadFromUDP(buf)
			if err != nil || got != n {
				t.Errorf("%d bytes: %d, %v", n, got, err)
			}
		}
		return err
	}
	setMTU := func(e *veth.End, mtu int) {
		t.Helper()
		must(t, e.Change(func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) }))
	}
	for _, mtu := range []int{1500, 1400, 1600} {
		if mtu != 1500 {
			setMTU(w.pair.A, max(mtu, 1500))
			setMTU(w.pair.B, mtu)
			if ev := w.expect(t, events, cq.EventMTU); ev.Data != uint64(mtu) {
				t.Errorf("%+v", ev)
			}
			// The table hears of it on a socket of its own.
			shmtest.Eventually(t, "the MTU in the table", func() bool {
				hop, err := w.table.Lookup(w.pair.A.Addr)
				return err == nil && hop.MTU == mtu
			})
		}
		if w.MaxPayload() != mtu-28 {
			t.Errorf("MTU %d: %d bytes at most", mtu, w.MaxPayload())
		}
		must(t, try(mtu-28))
		if err := try(mtu - 27); !errors.Is(err, syscall.EMSGSIZE) {
			t.Errorf("MTU %d: %v", mtu, err)
		}
	}
}

// TestVethRemovedWhileWaiting: a Run that sleeps is woken when the device is removed, what waited
// for the link is answered, and there is one event.
func TestVethRemovedWhileWaiting(t *testing.T) {
	shmtest.Conforms(t)
	for name, remove := range map[string]func(w *wired){
		"removed": func(w *wired) { must(t, w.pair.B.Remove()) },
		"moved": func(w *wired) {
			must(t, w.pair.B.Change(func(l netlink.Link) error {
				return netlink.LinkSetNsFd(l, int(w.pair.A.NetNS().Fd()))
			}))
		}} {
		t.Run(name, func(t *testing.T) {
			w, events := newWatched(t, func(c *endpoint.Config) { c.Shared = true })
			_, peer := w.kernelSocket(t)
			must(t, w.persist(t, func() error { return w.Send(nil, peer, 1) }))
			for len(w.read(t)) == 0 {
				shmtest.Got(w.Progress()).Or(t)
			}
			must(t, w.pair.B.SetUp(false))
			w.expect(t, events, cq.EventLinkDown)
			must(t, w.Send(nil, peer, 2))
			_, result := started(t, w.Run)
			w.sleeps(t)
			remove(w)
			if err := result(); !errors.Is(err, xdp.ErrDeviceGone) {
				t.Errorf("Run: %v", err)
			}
			if e := w.readErr(t); e.Context != 2 || !errors.Is(&e, syscall.ECANCELED) {
				t.Errorf("%+v", e)
			}
			if err := w.Send(nil, peer, 3); !errors.Is(err, xdp.ErrDeviceGone) {
				t.Errorf("afterwards: %v", err)
			}
			// The kernel takes the addresses away first.
			ev := cq.Event{Payload: make([]byte, 0, 16)}
			_, err := events.ReadContext(context.Background(), &ev, cq.ReadOptions{Timeout: patience})
			for err == nil && ev.Event == cq.EventAddressRemoved {
				_, err = events.ReadContext(context.Background(), &ev, cq.ReadOptions{Timeout: patience})
			}
			var gone cq.EventError
			if !errors.Is(err, cq.ErrAvail) {
				t.Fatalf("%+v, %v", ev, err)
			}
			_, err = events.ReadErr(&gone, 0)
			if must(t, err); gone.FID != w.FID() || gone.Context != 55 ||
				!errors.Is(&gone, syscall.ENXIO) {
				t.Errorf("%+v", gone)
			}
			none(t, events)
		})
	}
}

// TestVethRemovedUndriven: an event comes although nobody drives the endpoint.
func TestVethRemovedUndriven(t *testing.T) {
	w, events := newWatched(t, nil)
	must(t, w.pair.B.Remove())
	var gone cq.EventError
	shmtest.Eventually(t, "the event", func() bool {
		_, err := events.ReadErr(&gone, 0)
		ev := cq.Event{Payload: make([]byte, 0, 16)} // an address, which goes first
		_, _ = events.Read(&ev, 0)
		return err == nil
	})
	if !errors.Is(&gone, syscall.ENXIO) {
		t.Errorf("%+v", gone)
	}
	if _, err := w.Progress(); !errors.Is(err, xdp.ErrDeviceGone) {
		t.Error(err)
	}
	none(t, events)
}

// TestWatchNothing: a socket without an interface cannot be watched, and Open says so.
func TestWatchNothing(t *testing.T) {
	s := alone(t, nil)
	_, err := endpoint.Open(endpoint.Config{Socket: s.Socket(), Receive: s.rx,
		Watch: &endpoint.WatchOptions{}})
	if !errors.Is(err, xdp.ErrNoDevice) {
		t.Error(err)
	}
}

// TestEventsFull: what finds no room in the event queue comes again, and the numbers of queues are
// told in one word.
func TestEventsFull(t *testing.T) {
	events := newEvents(t)
	s := alone(t, configured(func(c *endpoint.Config) { c.Events = events }))
	n := 0
	for s.LinkEvent(netif.Event{Kind: netif.QueuesChanged, RxQueues: 3, TxQueues: 2}) {
		n++
	}
	if n == 0 || s.LinkEvent(netif.Event{Kind: netif.Removed}) {
		t.Errorf("%d taken, and the end too", n)
	}
	if _, err := s.Progress(); !errors.Is(err, xdp.ErrDeviceGone) {
		t.Error(err)
	}
	for range n {
		var ev cq.Event
		if _, err := events.Read(&ev, 0); err != nil || ev.Event != cq.EventQueues || ev.Data != 3<<32|2 {
			t.Fatalf("%+v, %v", ev, err)
		}
	}
	for range 2 {
		if !s.LinkEvent(netif.Event{Kind: netif.Removed}) {
			t.Error("there is room")
		}
	}
	var gone cq.EventError
	shmtest.Got(events.ReadErr(&gone, 0)).Or(t)
	if _, err := events.ReadErr(&gone, 0); err == nil {
		t.Error("told twice")
	}
	if err := s.Close(); err != nil || !s.LinkEvent(netif.Event{Kind: netif.Up}) {
		t.Error("an event after Close", err)
	}
	none(t, events)
}

// TestStaticMTU: the limit follows the interface although the resolver knows nothing of it.
func TestStaticMTU(t *testing.T) {
	s := alone(t, nil)
	buf := make([]byte, 1500)
	must(t, s.Inject(buf[:1472], s.peer))
	for _, mtu := range []int{1400, 1500, 1300} {
		if !s.LinkEvent(netif.Event{Kind: netif.MTUChanged, MTU: mtu}) {
			t.Error("not taken")
		}
		must(t, s.Inject(buf[:mtu-28], s.peer))
		if err := s.Inject(buf[:mtu-27], s.peer); !errors.Is(err, syscall.EMSGSIZE) {
			t.Errorf("MTU %d: %v", mtu, err)
		}
	}
}

// TestMTUInBatch: a message that does not fit an MTU which came in the middle of a batch is
// refused, though the way to its peer was asked for before.
func TestMTUInBatch(t *testing.T) {
	s := alone(t, configured(func(c *endpoint.Config) {
		ways := c.Resolver.(endpoint.Static)
		ways[stranger.Addr()] = ways[addrB.Addr()]
	}))
	post := func(n int, to netip.AddrPort) error {
		return s.SendMsg(&endpoint.Msg{Buf: numbers(n), Dest: to, Flags: cq.FlagMore})
	}
	must(t, post(1400, addrB))
	s.LinkEvent(netif.Event{Kind: netif.MTUChanged, MTU: 600})
	must(t, post(1, stranger))
	if err := post(1400, addrB); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("1400 bytes with an MTU of 600: %v", err)
	}
	must(t, post(572, addrB))
	s.Flush()
	want := []string{string(numbers(1400)), string(numbers(1)), string(numbers(572))}
	if got := s.sent(t); !slices.Equal(got, want) {
		t.Errorf("%d were sent, not as posted", len(got))
	}
}
