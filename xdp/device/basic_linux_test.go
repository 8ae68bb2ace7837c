package device_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

// TestSendAndReceive: an application gets what a kernel socket sends, in memory of its own or where
// the kernel put it, and what it sends arrives there.
func TestSendAndReceive(t *testing.T) {
	t.Parallel()
	t.Run("copied", func(t *testing.T) { sendAndReceive(t, false) })
	t.Run("in place", func(t *testing.T) { sendAndReceive(t, true) })
}

func sendAndReceive(t *testing.T, inPlace bool) {
	r := newRig(t, device.Config{Frames: 512})
	e := r.dial(device.Request{Name: "first", Ports: []uint16{5000}, InPlace: inPlace})
	if frames, _ := e.Regions(); inPlace != (frames == device.UMEMOf(r.server).Region().ID()) {
		t.Errorf("frames are in region %d", frames)
	}
	peer := r.peer(6000)
	for i := range 600 { // more than there are frames, so they come round
		want := fmt.Sprint("datagram ", i)
		if _, err := peer.WriteToUDPAddrPort([]byte(want), r.target(5000)); err != nil {
			t.Fatal(err)
		}
		entry := next(t, e)
		rec := shmtest.Got(e.Record(&entry)).Or(t)
		if rec.Src != addrOf(peer) || rec.Dst != r.target(5000) || rec.RxNs == 0 {
			t.Fatalf("record %+v", rec)
		}
		if got := text(t, e, &entry); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	buf := make([]byte, 2000)
	for i := range 300 {
		want := fmt.Sprint("answer ", i)
		must(t, e.SendTo([]byte(want), 0, addrOf(peer), uint64(i)))
		n, from, err := peer.ReadFromUDPAddrPort(buf)
		must(t, err)
		if string(buf[:n]) != want || from.Port() != 5000 {
			t.Fatalf("got %q from %v", buf[:n], from)
		}
		if c := next(t, e); c.Context != uint64(i) || c.Flags != cq.FlagSend|cq.FlagMsg {
			t.Fatalf("completion %+v", c)
		}
	}
	await(t, "the last return", func() bool {
		s := r.server.Stats()
		sum, all := frameSum(s)
		return len(s.Apps) == 1 && s.Apps[0].Loaned == 0 && s.Apps[0].Returned == 600 &&
			s.Apps[0].UnderWay == 0 && s.Apps[0].Sent == 300 && sum == all
	})
	await(t, "the same counts", func() bool {
		s := e.Stats()
		return s.Received == 600 && s.Sent == 300 && s.Stale == 0
	})
	must(t, r.reported())
}

// TestAddressVector: an endpoint sends to indices of an address vector, and says which there are
// not.
func TestAddressVector(t *testing.T) {
	t.Parallel()
	r := newRig(t, device.Config{})
	peer := r.peer(6000)
	v := shmtest.Have(cq.CreateAddresses(cq.Unnamed("peers"), cq.AddressOptions{})).In(t)
	e := r.dial(device.Request{Ports: []uint16{5000}, Addresses: v})
	index, err := v.Insert([][]byte{cq.AppendSockaddr(nil, addrOf(peer))}, cq.InsertOptions{})
	must(t, err)
	to := index[0]
	must(t, e.Send([]byte("by index"), to, 9))
	buf := make([]byte, 100)
	n := shmtest.Got(peer.Read(buf)).Or(t)
	if c := next(t, e); string(buf[:n]) != "by index" || c.Context != 9 {
		t.Errorf("got %q, %+v", buf[:n], c)
	}
	must(t, e.Inject([]byte("again"), to))
	if n, err = peer.Read(buf); err != nil || string(buf[:n]) != "again" {
		t.Errorf("got %q, %v", buf[:n], err)
	}
	if err := e.Send([]byte("nobody"), to+1, 9); !errors.Is(err, device.ErrOptions) {
		t.Error(err)
	}
}

// hesitant does not know the way when it is asked the next few times.
type hesitant struct {
	wires atomic.Pointer[wires]
	left  atomic.Int64
}

func (h *hesitant) Lookup(dst netip.Addr) (xdp.Hop, error) {
	if h.left.Add(-1) >= 0 {
		return xdp.Hop{}, packet.ErrResolving
	}
	return h.wires.Load().Lookup(dst)
}

// TestParkedOrder: whenever the way becomes known, nothing overtakes what waited for it.
func TestParkedOrder(t *testing.T) {
	t.Parallel()
	way := &hesitant{}
	r := newRig(t, device.Config{Resolver: way})
	way.wires.Store(&wires{r.pair.B, r.pair.A})
	e := r.dial(device.Request{Ports: []uint16{5000}})
	peer := r.peer(6000)
	buf := make([]byte, 8)
	for round := range 40 {
		way.left.Store(int64(1 + round%7))
		for i := range 5 {
			must(t, e.InjectTo([]byte{byte(i)}, 0, addrOf(peer)))
		}
		for i := range 5 {
			_, _, err := peer.ReadFromUDPAddrPort(buf)
			if err != nil || int(buf[0]) != i {
				t.Fatalf("round %d: %d in place of %d, %v", round, buf[0], i, err)
			}
		}
	}
}

// moving is a way that changes.
type moving struct{ hop atomic.Pointer[xdp.Hop] }

func (m *moving) Lookup(netip.Addr) (xdp.Hop, error) { return *m.hop.Load(), nil }

// TestWayChanges: what is sent goes by the way that there is, also to where the last one went.
func TestWayChanges(t *testing.T) {
	t.Parallel()
	way := &moving{}
	way.hop.Store(&xdp.Hop{})
	r := newRig(t, device.Config{Resolver: way})
	e := r.dial(device.Request{Ports: []uint16{5000}})
	peer := r.peer(6000)
	for i, source := range []netip.Addr{r.pair.B.Addr, silent, r.pair.B.Addr} {
		hop := shmtest.Got(wires{r.pair.B, r.pair.A}.Lookup(r.pair.A.Addr)).Or(t)
		hop.Source, hop.Generation = source, uint64(i)
		way.hop.Store(&hop)
		must(t, e.InjectTo(nil, 0, addrOf(peer)))
		_, from, err := peer.ReadFromUDPAddrPort(make([]byte, 1))
		if err != nil || from.Addr().Unmap() != source {
			t.Fatalf("%d: from %v, %v; want %v", i, from, err, source)
		}
	}
}

// TestFairness: applications that send as fast as they can, one of them without ever reading a
// completion, keep nobody else from sending and receiving.
func TestFairness(t *testing.T) {
	shmtest.Conforms(t)
	r := newRig(t, device.Config{Frames: 512})
	l := bystander(r)
	sink := addrOf(r.peer(6001))
	greedy := r.dial(device.Request{Name: "greedy", Ports: []uint16{5001}, Frames: 32,
		Sends: 64})
	deaf := r.dial(device.Request{Name: "deaf", Ports: []uint16{5002}, Frames: 32, Sends: 64,
		QueueOptions: cq.Options{Size: 64}})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	flood := func(e *device.Endpoint, reads bool) {
		var es [32]cq.Entry
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := e.SendTo(make([]byte, 1000), 0, sink, 1); err != nil &&
				!errors.Is(err, device.ErrNoSlot) {
				t.Error(err)
				return
			}
			if reads {
				_, _ = cq.Read(e.Queue(), es[:])
			}
		}
	}
	wg.Go(func() { flood(greedy, true) })
	wg.Go(func() { flood(deaf, false) })
	for range 2 {
		l.goesOn()
	}
	await(t, "what the others send meanwhile", func() bool {
		return greedy.Stats().Sent >= 1000 && deaf.Stats().Sent >= 64
	})
	l.goesOn()
	close(stop)
	wg.Wait()
	// What the deaf one is told stands in its queue, and no more was taken than there is room for.
	if s := deaf.Stats(); s.Sent != 64 {
		t.Errorf("deaf: %+v", s)
	}
	must(t, r.reported())
}

// TestReturnedFrames: an application that has given its frames back gets as many packets, however
// short its turns are.
func TestReturnedFrames(t *testing.T) {
	t.Parallel()
	const frames = 16
	for name, inPlace := range map[string]bool{"copied": false, "in place": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, device.Config{TxBatch: 1, RxBatch: 2 * frames})
			e := r.dial(device.Request{Ports: []uint16{5000}, Frames: frames, InPlace: inPlace})
			peer := r.peer(6000)
			var es [frames]cq.Entry
			for round := range 4 {
				resume := r.server.Hold()
				if round > 0 {
					must(t, e.Release(es[:]...))
				}
				for i := range frames {
					write(t, peer, r, 5000, fmt.Sprint(round, " ", i))
				}
				resume()
				await(t, "the packets", func() bool {
					s := e.Stats()
					return s.Received+s.NoFrame == uint64((round+1)*frames)
				})
				if s := e.Stats(); s.NoFrame != 0 {
					t.Fatalf("round %d: dropped: %+v", round, s)
				}
				for i := range es {
					es[i] = next(t, e)
				}
			}
			must(t, e.Release(es[:]...))
			if s := e.Stats(); s.Released != 4*frames || s.Publishes != 4 {
				t.Errorf("%d frames were given back in %d batches", s.Released, s.Publishes)
			}
			r.whole()
		})
	}
}

var (
	sixA = netip.MustParseAddr("fd00::a")
	sixB = netip.MustParseAddr("fd00::b")
)

// TestIPv6: datagrams over IPv6, with an address that the kernel resolves while the first waits.
func TestIPv6(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	resolver := &laterTable{}
	r := newRig(t, device.Config{Resolver: resolver})
	xdptest.AddIPv6(t, r.pair, sixA, sixB)
	resolver.Store(openTable(t, r.pair.B))
	e := r.dial(device.Request{Ports: []uint16{5000}})
	peer := xdptest.UDPOn(t, r.pair.A, netip.AddrPortFrom(sixA, 6000))
	most := e.Info().MaxPayload + packet.IPv4Bytes - packet.IPv6Bytes
	want := make([]byte, most)
	copy(want, "over IPv6")
	sendResolved(t, e, want, netip.AddrPortFrom(sixA, 6000))
	buf := make([]byte, 2000)
	n, from, err := peer.ReadFromUDPAddrPort(buf)
	must(t, err)
	if n != most || string(buf[:n]) != string(want) || from != netip.AddrPortFrom(sixB, 5000) {
		t.Errorf("%d bytes from %v", n, from)
	}
	must(t, e.SendTo(make([]byte, most+1), 0, netip.AddrPortFrom(sixA, 6000), 2))
	if c := nextError(t, e); c.Context != 2 || c.Err.Error() != unix.EMSGSIZE.Error() {
		t.Errorf("one byte more: %+v", c)
	}
	shmtest.Got(peer.WriteToUDPAddrPort([]byte("answer"), from)).Or(t)
	entry := next(t, e)
	rec := shmtest.Got(e.Record(&entry)).Or(t)
	if got := text(t, e, &entry); got != "answer" || rec.Src != netip.AddrPortFrom(sixA, 6000) ||
		rec.Dst != netip.AddrPortFrom(sixB, 5000) {
		t.Errorf("%q, %+v", got, rec)
	}
}

// sendResolved sends a datagram with the context 1. It sends it again where the kernel took longer
// to ask for the address, on a machine that has no time, than a datagram waits.
func sendResolved(t testing.TB, e *device.Endpoint, payload []byte, to netip.AddrPort) {
	t.Helper()
	for {
		must(t, e.SendTo(payload, 0, to, 1))
		var es [1]cq.Entry
		n, err := read(t, e, es[:])
		if n == 1 && es[0].Context == 1 {
			return
		}
		var entry cq.ErrorEntry
		if !errors.Is(err, cq.ErrAvail) || e.Queue().ReadErr(&entry) != nil ||
			!errors.Is(&entry, unix.EHOSTUNREACH) {
			t.Fatalf("%v, %+v, %+v", err, es[0], entry)
		}
	}
}

// TestDeviceGone: when the interface is removed the server ends with that, and its applications
// hear of it as of any other end of a server.
func TestDeviceGone(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{})
	s := xdptest.Have(pair.B, func() (*device.Server, error) {
		return device.NewServer(t.Context(), device.Config{Interface: pair.B.Name,
			Resolver: wires{pair.B, pair.A}})
	}).Where(t, "xdp")
	path := socketPath(t)
	l := shmtest.Have(device.Listen(path)).In(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), l.UnixListener) }()
	events := make(chan device.Event, 1)
	e := dial(t, path, device.Request{Ports: []uint16{5000}, NoReconnect: true,
		Notify: func(ev device.Event) { events <- ev }})
	// Down first: it goes on, and up again it is as before.
	must(t, pair.B.SetUp(false))
	must(t, e.SendTo([]byte("x"), 0, netip.AddrPortFrom(pair.A.Addr, 6000), 1))
	must(t, pair.B.SetUp(true))
	if c := next(t, e); c.Context != 1 {
		t.Errorf("%+v", c)
	}
	must(t, pair.B.Remove())
	if err := <-served; !isGone(err) {
		t.Errorf("Serve: %v", err)
	}
	if err := s.Err(); !isGone(err) {
		t.Errorf("Err: %v", err)
	}
	must(t, s.Close())
	if ev := <-events; ev.Err == nil {
		t.Errorf("%+v", ev)
	}
}

// TestNoAllocations: sending and receiving allocates nothing, on neither side: the server is in
// this process, and its allocations count as well.
func TestNoAllocations(t *testing.T) {
	r := newRig(t, device.Config{})
	e := r.dial(device.Request{Ports: []uint16{5000}, Frames: 512})
	peer := r.peer(6000)
	to := addrOf(peer)
	payload := make([]byte, 100)
	var es [8]cq.Entry
	var bad error
	sent, end := 0, time.Now().Add(time.Minute)
	if n := testing.AllocsPerRun(5000, func() {
		err := e.SendTo(payload, 0, to, 1)
		for errors.Is(err, device.ErrNoSlot) && time.Now().Before(end) {
			time.Sleep(time.Microsecond) // for one processor runs both sides
			_, _ = cq.Read(e.Queue(), es[:])
			err = e.SendTo(payload, 0, to, 1)
		}
		if err == nil {
			sent++
		} else {
			bad = err
		}
		_, _ = cq.Read(e.Queue(), es[:])
	}); n != 0 && !shmtest.Race {
		t.Errorf("%v allocations to send, %d sent", n, sent)
	}
	must(t, bad)
	const count = 400
	await(t, "the last completion", func() bool { drop(t, e); return e.Stats().Sent == uint64(sent) })
	drop(t, e)
	await(t, "packets", func() bool { // few at once, or the wire has no room for them
		for range min(16, count-int(e.Stats().Received)) {
			shmtest.Got(peer.WriteToUDPAddrPort(payload, r.target(5000))).Or(t)
		}
		return e.Stats().Received >= count
	})
	got := 0
	if n := testing.AllocsPerRun(count-1, func() {
		if _, err := cq.Read(e.Queue(), es[:1]); err != nil {
			bad = err
			return
		}
		loan, err := e.View(&es[0])
		if err != nil {
			bad = err
			return
		}
		got += len(loan.Bytes())
		loan.Release()
		_, bad = e.Record(&es[0])
		if bad == nil {
			bad = e.Release(es[0])
		}
	}); n != 0 && !shmtest.Race || got != count*len(payload) {
		t.Errorf("%v allocations to receive, %d bytes", n, got)
	}
	must(t, bad)
}

// lent is how many frames a server has lent in place, of its own.
func lent(s *device.Server) uint64 {
	var n uint64
	for _, f := range s.Stats().Frames {
		n += f.Loaned
	}
	return n
}

// whole checks that every frame of a server has one owner.
func (r *rig) whole() {
	r.t.Helper()
	if sum, all := frameSum(r.server.Stats()); sum != all {
		r.t.Errorf("%d of %d frames", sum, all)
	}
	must(r.t, r.reported())
}

func write(t testing.TB, peer *net.UDPConn, r *rig, port uint16, text string) {
	t.Helper()
	shmtest.Got(peer.WriteToUDPAddrPort([]byte(text), r.target(port))).Or(t)
}

// TestInPlaceBounded: who reads in place and gives nothing back has what it was granted, and
// another application gets its packets all the same, in memory of its own.
func TestInPlaceBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, device.Config{Frames: 128})
	e := r.dial(device.Request{Ports: []uint16{5000}, Frames: 64, InPlace: true})
	other := r.dial(device.Request{Ports: []uint16{5001}, Frames: 16})
	peer := r.peer(6000)
	for i := range 200 { // more than all frames
		write(t, peer, r, 5000, fmt.Sprint("held ", i))
		write(t, peer, r, 5001, fmt.Sprint("other ", i))
		entry := next(t, other)
		if got := text(t, other, &entry); got != fmt.Sprint("other ", i) {
			t.Fatalf("got %q", got)
		}
	}
	await(t, "all packets", func() bool { return e.Stats().Received+e.Stats().NoFrame == 200 })
	if s := e.Stats(); s.Received != 64 || lent(r.server) != 64 {
		t.Errorf("%d lent, %+v", lent(r.server), s)
	}
	for i := range 64 {
		entry := next(t, e)
		if got := text(t, e, &entry); got != fmt.Sprint("held ", i) {
			t.Fatalf("got %q", got)
		}
	}
	await(t, "the returns", func() bool { return lent(r.server) == 0 })
	write(t, peer, r, 5000, "again")
	entry := next(t, e)
	if got := text(t, e, &entry); got != "again" {
		t.Errorf("got %q", got)
	}
	r.whole()
}

// TestInPlaceReturns: a return ends the loan that it names. One that comes twice, of another
// generation, of another memory or of no frame is counted and changes nothing.
func TestInPlaceReturns(t *testing.T) {
	t.Parallel()
	r := newRig(t, device.Config{Frames: 128})
	e := r.dial(device.Request{Ports: []uint16{5000}, InPlace: true})
	peer := r.peer(6000)
	write(t, peer, r, 5000, "first")
	first := next(t, e)
	for _, change := range []func(*cq.Entry){
		func(c *cq.Entry) { c.Data++ },
		func(c *cq.Entry) { c.Data |= 1 << 32 },
		func(c *cq.Entry) { c.Buf += 2048 },
		func(c *cq.Entry) { c.Buf += 1 << 40 },
		func(c *cq.Entry) { c.Buf ^= 1 << 63 },
	} {
		c := device.ReturnOf(&first)
		change(&c)
		must(t, e.Submit(c))
	}
	await(t, "the wrong returns", func() bool { return e.Stats().Stale == 5 })
	if lent(r.server) != 1 {
		t.Errorf("%d frames are lent", lent(r.server))
	}
	text(t, e, &first)
	must(t, e.Release(first))
	await(t, "the second return", func() bool { return e.Stats().Stale == 6 })
	if s := e.Stats(); s.Returned != 1 || lent(r.server) != 0 {
		t.Errorf("%d frames are lent, %+v", lent(r.server), s)
	}
	r.whole()
}

// TestInPlaceKilled: of a process that is killed with frames in its hands, unread ones too, all are
// back, and the next one may read in place.
func TestInPlaceKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t, device.Config{Frames: 128})
	peer := r.peer(6000)
	for range 3 {
		cmd := shmtest.Child(t, "device-app", "PATH_OF="+r.path, "PORT=5000", "HOLD=1", "IN_PLACE=1")
		p := start(t, cmd)
		_, err := device.Dial(t.Context(), r.path, device.Request{InPlace: true})
		if !errors.Is(err, device.ErrBudget) {
			t.Fatalf("a second process: %v", err)
		}
		for i := range 20 {
			write(t, peer, r, 5000, fmt.Sprint("lost ", i))
		}
		await(t, "packets", func() bool { return lent(r.server) == 20 })
		p.Kill()
		await(t, "the end of the process", func() bool { return len(r.server.Stats().Apps) == 0 })
		if n := lent(r.server); n != 0 {
			t.Fatalf("%d frames are lent", n)
		}
	}
	e := r.dial(device.Request{Ports: []uint16{5000}, InPlace: true})
	write(t, peer, r, 5000, "mine")
	entry := next(t, e)
	if got := text(t, e, &entry); got != "mine" {
		t.Errorf("got %q", got)
	}
	sum, all := frameSum(r.server.Stats())
	if sum != all {
		t.Errorf("%d of %d frames", sum, all)
	}
}

// TestInPlaceRefused: another user may not read in place, nor may anybody at a server with several
// queues, and nobody gets more than the kernel can do without.
func TestInPlaceRefused(t *testing.T) {
	t.Parallel()
	dial := func(r *rig, frames int) error {
		e, err := device.Dial(t.Context(), r.path, device.Request{Frames: frames, InPlace: true})
		if err == nil {
			err = e.Close()
		}
		return err
	}
	r := newRig(t, device.Config{Frames: 128, Allow: bothUsers()})
	if err := dial(r, 65); !errors.Is(err, device.ErrBudget) {
		t.Errorf("more than half of the frames: %v", err)
	}
	must(t, dial(r, 64))
	cmd := appCommand(t, "device-app", r.path, 5001, "IN_PLACE=1")
	cmd.Stderr = nil
	said, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "own user") {
		t.Errorf("another user: %v, %s", err, said)
	}
	r = newRig(t, device.Config{Frames: 128, Queues: []uint32{0, 1}})
	if err := dial(r, 0); !errors.Is(err, device.ErrRefused) {
		t.Errorf("two queues: %v", err)
	}
}

// TestInPlaceThrownOut: what a server that lives on had lent before it hung up can be read, and
// names no loan of another session: there is none.
func TestInPlaceThrownOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, device.Config{Frames: 128})
	gone := make(chan device.Event, 1)
	e := r.dial(device.Request{Ports: []uint16{5000}, InPlace: true,
		Notify: func(ev device.Event) { gone <- ev }})
	peer := r.peer(6000)
	write(t, peer, r, 5000, "held")
	entry := next(t, e)
	must(t, r.server.Unreadable(5000))
	must(t, e.SendTo([]byte("x"), 0, addrOf(peer), 1))
	if ev := <-gone; ev.Err == nil {
		t.Fatalf("%+v", ev)
	}
	await(t, "the end of the search", func() bool {
		err := e.SendTo([]byte("x"), 0, addrOf(peer), 2)
		return errors.Is(err, device.ErrServerGone) && strings.Contains(err.Error(), "lives on")
	})
	if got := text(t, e, &entry); got != "held" {
		t.Errorf("got %q", got)
	}
	if s := e.Stats(); s.Former != 1 || s.Released != 0 {
		t.Errorf("%+v", s)
	}
	if r.reported() == nil {
		t.Error("no report")
	}
}
