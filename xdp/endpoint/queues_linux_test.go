package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/drive"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

// arrival drives until a datagram has come, and passes over ends of sends.
func (w *wired) arrival(t testing.TB) cq.Entry {
	t.Helper()
	var e cq.Entry
	w.await(t, "a datagram", func() bool {
		var es [1]cq.Entry
		if n, _ := cq.Read(w.q, es[:]); n == 0 {
			return false
		}
		e = es[0]
		return e.Flags&cq.FlagRecv != 0
	})
	return e
}

// echo has a kernel socket send to the endpoint and take the answer.
func (w *wired) echo(t testing.TB, c *net.UDPConn, peer cq.Addr, port int, text string) {
	t.Helper()
	_, err := c.WriteToUDP([]byte(text), &net.UDPAddr{IP: w.pair.B.Addr.AsSlice(), Port: port})
	must(t, err)
	e := w.arrival(t)
	if got := w.text(t, &e); got != text || e.Src.Addr() != peer {
		t.Fatalf("%s got %q from %d, want %q", w.name, got, e.Src, text)
	}
	must(t, w.Release(e))
	must(t, w.persist(t, func() error { return w.Send([]byte("re "+text), peer, 1) }))
	buf := make([]byte, 100)
	n, from, err := c.ReadFromUDP(buf)
	if err != nil || string(buf[:n]) != "re "+text || from.Port != port {
		t.Fatalf("%s answered %q from %v, %v", w.name, buf[:n], from, err)
	}
}

// TestVethOneQueue: several endpoints on one queue share its frames. Each gets what its own rules
// say and completes its own sends, and one that is closed takes nothing of the others with it.
func TestVethOneQueue(t *testing.T) {
	shmtest.Conforms(t)
	for _, mode := range []xdp.AttachMode{xdp.AttachNative, xdp.AttachGeneric} {
		t.Run(mode.String(), func(t *testing.T) {
			pair := xdptest.NewPair(t, veth.Config{})
			prog := xdptest.Attach(t, pair.B, xdp.ProgramOptions{Mode: mode})
			umem := xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 256})
			first := xdptest.Open(t, pair.B, 0, umem, xdp.Options{})
			var ws [3]*wired
			var cs [3]*net.UDPConn
			var peers [3]cq.Addr
			for i := range ws {
				s := first
				if i > 0 {
					s = xdptest.Have(pair.B, func() (*xdp.Socket, error) {
						return xdp.OpenShared(first, xdp.Options{})
					}).In(t)
				}
				base, port := uint32(i), uint16(testPort+i)
				must(t, s.Register(prog, base))
				xdptest.Steer(t, prog, port, base)
				ws[i] = wire(t, fmt.Sprint("end", i), pair, prog, s, port, nil)
				cs[i], peers[i] = ws[i].kernelSocket(t)
			}
			for n := range 400 { // more than there are frames
				i := n % 3
				ws[i].echo(t, cs[i], peers[i], testPort+i, fmt.Sprint("datagram ", n))
			}
			for i, w := range ws {
				w.drive(t)
				if s := w.Stats(); s.Received < 130 || s.Accepted < 130 || s.Kernel.TxInvalid != 0 {
					t.Errorf("%d: %+v", i, s)
				}
			}
			must(t, ws[1].Close())
			for n := range 100 {
				ws[0].echo(t, cs[0], peers[0], testPort, fmt.Sprint("after ", n))
				ws[2].echo(t, cs[2], peers[2], testPort+2, fmt.Sprint("after ", n))
			}
		})
	}
}

// TestVethQueues: an endpoint on each of several queues, which take parts of one UMEM.
func TestVethQueues(t *testing.T) {
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{Queues: 2})
	prog := xdptest.Attach(t, pair.B, xdp.ProgramOptions{Mode: xdp.AttachNative})
	umem := xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 512})
	xdptest.Steer(t, prog, testPort, 0) // the queue of arrival says which endpoint
	var ws [2]*wired
	for q := range ws {
		s := xdptest.Open(t, pair.B, uint32(q), umem, xdp.Options{Frames: 256})
		must(t, s.Register(prog, 0))
		ws[q] = wire(t, fmt.Sprint("queue", q), pair, prog, s, testPort, nil)
		if ws[q].FID() == ws[0].FID() && q > 0 {
			t.Error("both endpoints are the same in events")
		}
	}
	// A sender without a queue of its own choice is spread by flow, so there are many.
	var got [2]int
	for n := range 400 {
		c, _ := ws[0].kernelSocket(t)
		shmtest.Got(c.WriteToUDP([]byte{byte(n)}, ws[0].target())).Or(t)
		must(t, c.Close())
		shmtest.Eventually(t, "the datagram", func() bool {
			for q, w := range ws {
				w.drive(t)
				for _, e := range w.read(t) {
					if w.text(t, &e)[0] != byte(n) {
						t.Errorf("%d: %+v", n, e)
					}
					must(t, w.Release(e))
					got[q]++
				}
			}
			return got[0]+got[1] > n
		})
		if got[0] > 4 && got[1] > 4 {
			break
		}
	}
	if got[0] <= 4 || got[1] <= 4 {
		t.Errorf("%d and %d datagrams", got[0], got[1])
	}
	c, peer := ws[1].kernelSocket(t)
	must(t, ws[1].persist(t, func() error { return ws[1].Send([]byte("from 1"), peer, 9) }))
	buf := make([]byte, 10)
	n, err := c.Read(buf)
	if err != nil || string(buf[:n]) != "from 1" {
		t.Errorf("%q, %v", buf[:n], err)
	}
}

// TestVethJumbo: datagrams of 4900 bytes over an MTU of 5000, to and from a kernel socket.
func TestVethJumbo(t *testing.T) {
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{MTU: 5000})
	prog := xdptest.Attach(t, pair.B, xdp.ProgramOptions{Mode: xdp.AttachNative,
		MultiBuffer: true})
	umem := xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 256})
	socket := xdptest.Open(t, pair.B, 0, umem, xdp.Options{MultiBuffer: true})
	must(t, socket.Register(prog, 0))
	xdptest.Steer(t, prog, testPort, 0)
	w := wire(t, "jumbo", pair, prog, socket, testPort, nil)
	c, peer := w.kernelSocket(t)
	want := numbers(4972)
	buf := make([]byte, 8000)
	for i := range 100 {
		shmtest.Got(c.WriteToUDP(want[:4900+i%73], w.target())).Or(t)
		var got []byte
		for more := true; more; {
			e := w.arrival(t)
			more = e.Flags&cq.FlagMore != 0
			got = append(got, w.text(t, &e)...)
			must(t, w.Release(e))
		}
		if !bytes.Equal(got, want[:4900+i%73]) {
			t.Fatalf("%d: %d bytes", i, len(got))
		}
		must(t, w.persist(t, func() error { return w.Send(got, peer, 1) }))
		n, err := c.Read(buf)
		if err != nil || !bytes.Equal(buf[:n], got) {
			t.Fatalf("%d: %d bytes back, %v", i, n, err)
		}
	}
	if err := w.Send(numbers(4973), peer, 1); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("beyond the MTU: %v", err)
	}
}

// eventReader is another process that reads an event queue and prints what it is told.
func eventReader() {
	d := shmtest.Needs(shm.OpenDir(""))
	q := shmtest.Needs(cq.CreateEvents(cq.Named(d, "device events"), cq.EventOptions{}))
	shmtest.Say("ready")
	need(errors.Join(printEvents(q), q.Close(), d.Close()))
}

func printEvents(q *cq.EventQueue) error {
	for {
		ev := cq.Event{Payload: make([]byte, 0, 16)}
		_, err := q.ReadContext(context.Background(), &ev, cq.ReadOptions{Timeout: patience})
		if errors.Is(err, cq.ErrAvail) {
			var gone cq.EventError
			if _, err = q.ReadErr(&gone, 0); err == nil {
				fmt.Println("error", gone.Err == cq.Errno(syscall.ENXIO), gone.Context)
			}
			return err
		}
		if err != nil {
			return err
		}
		fmt.Printf("event %d %d %x %d\n", ev.Event, ev.Data, ev.Payload, ev.Context)
	}
}

// TestVethEvents: what happens to the interface comes to the event queue, once, its end included.
// The queue may be another process's, as it is here.
func TestVethEvents(t *testing.T) {
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{}) // first: without the privilege nothing is begun
	prog := xdptest.Attach(t, pair.B, xdp.ProgramOptions{})
	umem := xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 256})
	socket := xdptest.Open(t, pair.B, 0, umem, xdp.Options{})
	must(t, socket.Register(prog, 0))
	c := shmtest.Start(t, shmtest.Child(t, "event reader"))
	defer c.Kill()
	expect := func(kind cq.EventKind, data int, payload []byte) {
		t.Helper()
		c.Says(t, fmt.Sprintf("event %d %d %x 77", kind, data, payload))
	}
	c.Says(t, "ready")
	d := shmtest.Have(shm.OpenDir("")).In(t)
	events := shmtest.Have(cq.AttachEvents(t.Context(), cq.Named(d, "device events"),
		cq.WriterOptions{})).In(t)
	wire(t, "elsewhere", pair, prog, socket, testPort, func(c *endpoint.Config) {
		c.Events, c.Context = events, 77
		c.Watch = &endpoint.WatchOptions{Poll: 10 * time.Millisecond}
	})
	b := pair.B
	for _, end := range []*veth.End{b, pair.A} { // itself, and its carrier
		must(t, end.SetUp(false))
		expect(cq.EventLinkDown, 0, nil)
		must(t, end.SetUp(true))
		expect(cq.EventLinkUp, 0, nil)
	}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 5}
	must(t, b.Change(func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, mac) }))
	expect(cq.EventMAC, 0, mac)
	more := &netlink.Addr{IPNet: &net.IPNet{IP: net.IP{198, 51, 100, 1}, Mask: net.CIDRMask(28, 32)}}
	must(t, b.Change(func(l netlink.Link) error { return netlink.AddrAdd(l, more) }))
	expect(cq.EventAddressAdded, 28, more.IP)
	must(t, b.Change(func(l netlink.Link) error { return netlink.AddrDel(l, more) }))
	expect(cq.EventAddressRemoved, 28, more.IP)
	must(t, b.Change(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1400) }))
	expect(cq.EventMTU, 1400, nil)
	must(t, prog.Close())
	expect(cq.EventProgram, 0, nil)
	must(t, b.Remove())
	// As it goes away it is down, and has no addresses, perhaps.
	line := c.Line(t)
	for ; strings.HasPrefix(line, "event "); line = c.Line(t) {
		var kind cq.EventKind
		_, err := fmt.Sscanf(line, "event %d", &kind)
		if err != nil || kind != cq.EventLinkDown && kind != cq.EventAddressRemoved {
			t.Errorf("the reader was told %q", line)
		}
	}
	if line != "error true 77" {
		t.Fatalf("the reader was told %q", line)
	}
	must(t, c.Wait())
}

// TestVethDownUp: traffic goes on when the link is up again, without anything being opened again.
func TestVethDownUp(t *testing.T) {
	shmtest.Conforms(t)
	w := newWired(t, xdp.AttachNative, nil)
	c, peer := w.kernelSocket(t)
	buf := make([]byte, 16)
	for i := range uint64(2) {
		must(t, w.persist(t, func() error { return w.Send([]byte("there"), peer, i) }))
		n, _, err := c.ReadFromUDP(buf)
		if err != nil || string(buf[:n]) != "there" {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		must(t, w.pair.B.SetUp(false))
		if err := w.Send([]byte("waits"), peer, i+10); err != nil && !errors.Is(err, xdp.ErrLinkDown) {
			t.Errorf("while it is down: %v", err)
		}
		shmtest.Got(w.Progress()).Or(t)
		must(t, w.pair.B.SetUp(true))
		must(t, c.SetReadDeadline(time.Now().Add(patience)))
		w.await(t, "both sends", func() bool {
			s := w.Socket().RingStats()
			return s.Sent == s.Posted
		})
		for len(w.read(t)) > 0 {
		}
		for { // the one that waited may have come, or been lost while the link came up
			must(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
			if _, _, err := c.ReadFromUDP(buf); err != nil {
				break
			}
		}
		// The other way, too: some are lost while the link comes up.
		w.await(t, "a datagram through the link that was down", func() bool {
			shmtest.Got(c.WriteToUDP([]byte("here"), w.target())).Or(t)
			time.Sleep(time.Millisecond)
			shmtest.Got(w.Progress()).Or(t)
			es := w.read(t)
			must(t, w.Release(es...))
			return len(es) > 0 && es[0].Flags&cq.FlagRecv != 0
		})
		must(t, c.SetReadDeadline(time.Now().Add(patience)))
	}
}

// TestToolsSeeWhatWasSent: what Stats and tools see is as old as publishEveryNs at most while sends
// go on. It is what there is after a round that found nothing and followed no send, and once Run
// sleeps.
func TestToolsSeeWhatWasSent(t *testing.T) {
	s := alone(t, nil)
	now := spin.Now() + 1e9
	round := func() { // at that time
		shmtest.Got(s.Driver().Round(now)).Or(t)
	}
	sent := uint64(0)
	sees := func(when string, want uint64) {
		if st, n := s.Stats().Accepted, s.shown(t); st != want || n != want {
			t.Errorf("%s: Stats has %d sends, and tools see %d, want %d", when, st, n, want)
		}
	}
	for name, then := range map[string]func(){
		"later":      func() { now += 100e3; round() },
		"calm":       round,
		"rest":       func() { s.Driver().Rest(now, new(drive.Sleep)) },
		"later rest": func() { now += 1e6; s.Driver().Rest(now, new(drive.Sleep)) },
	} {
		round()
		for range 3 {
			now++
			must(t, s.Inject(nil, s.peer))
			round()
			sent++
		}
		sees(name+", at once, which has its price", sent-3)
		then()
		sees(name, sent)
	}
}

// shown is how many sends tools see.
func (s *side) shown(t testing.TB) uint64 {
	t.Helper()
	all := shmtest.Got(status.List(s.dir)).Or(t)
	if len(all) != 1 {
		t.Fatalf("%d endpoints", len(all))
	}
	return all[0].Counters.Traffic.Accepted
}

// TestTwoQueues: what is received and what was sent complete in queues of their own, and a full one
// holds up nothing of the other.
func TestTwoQueues(t *testing.T) {
	shmtest.Conforms(t)
	d := shmtest.Have(shm.OpenDir("")).In(t)
	received := shmtest.Have(cq.Create(cq.Named(d, "received"), cq.Options{Size: 8})).In(t)
	lane := shmtest.Have(cq.Attach(t.Context(), cq.Named(d, "received"), cq.WriterOptions{})).In(t)
	s := alone(t, configured(func(c *endpoint.Config) { c.Receive = lane }))
	for range 12 { // four more than there is room for
		s.arrive(t, addrB, addrA, "in")
	}
	s.drive(t)
	for i := range uint64(20) {
		must(t, s.Send([]byte("out"), s.peer, i))
	}
	s.drive(t)
	sent := s.read(t)
	if len(sent) != 20 {
		t.Errorf("%d completions of sends", len(sent))
	}
	for _, e := range sent {
		if e.Flags&cq.FlagSend == 0 {
			t.Errorf("%+v", e)
		}
	}
	got := 0
	for {
		var es [16]cq.Entry
		n, err := cq.Read(received, es[:])
		if errors.Is(err, cq.ErrWouldBlock) {
			break
		}
		must(t, err)
		for i := range es[:n] {
			if es[i].Flags&cq.FlagRecv == 0 || s.text(t, &es[i]) != "in" {
				t.Errorf("%+v", es[i])
			}
		}
		got += n
		must(t, s.Release(es[:n]...))
		s.drive(t)
	}
	if st := s.Stats(); got != 12 || st.RxBlocked == 0 {
		t.Errorf("%d datagrams: %+v", got, st)
	}
}

// TestShared: many goroutines use an endpoint that another one runs, until one of them closes it.
func TestShared(t *testing.T) {
	shmtest.Conforms(t)
	a, b := newPair(t, func(o *options) {
		o.umem.Frames = 256
		o.queue = cq.Options{Shared: true}
		o.config = func(c *endpoint.Config) {
			c.Shared = true
			hop, _ := c.Resolver.Lookup(o.peer.Addr())
			c.Resolver = endpoint.Static{o.peer.Addr(): hop}
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	var sent, received, answered atomic.Int64
	for _, s := range []*side{a, b} {
		all.Go(func() {
			if err := s.Run(ctx); !errors.Is(err, os.ErrClosed) {
				t.Errorf("Run of %s: %v", s.name, err)
			}
		})
		for range 2 {
			all.Go(func() { s.reader(ctx, t, &received, &answered) })
		}
		for i := range 3 {
			all.Go(func() { s.sender(t, i, &sent) })
		}
		all.Go(func() {
			for s.Stats().Frames.Sum() == 256 && ctx.Err() == nil {
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	shmtest.Eventually(t, "arrivals", func() bool { return received.Load() >= 1500 })
	var closers sync.WaitGroup
	for _, s := range []*side{a, b} {
		for range 2 {
			closers.Go(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	closers.Wait()
	shmtest.Eventually(t, "all answers", func() bool { return answered.Load() >= sent.Load() })
	stop()
	all.Wait()
	if answered.Load() != sent.Load() {
		t.Errorf("%d sends, %d answers", sent.Load(), answered.Load())
	}
}

// sender posts in all ways until the endpoint is closed.
func (s *side) sender(t *testing.T, way int, sent *atomic.Int64) {
	for {
		var err error
		switch way {
		case 0:
			err = s.Send([]byte("send"), s.peer, 1)
		case 1:
			var f endpoint.Frame
			if f, err = s.Frame(); err == nil {
				n := copy(f.Bytes(), "frame")
				if err = s.SendFrame(f, n, &endpoint.Msg{To: s.peer, Context: 1}); err != nil {
					if e := s.AbandonFrame(f); e != nil && !errors.Is(err, os.ErrClosed) {
						t.Error(e)
					}
				}
			}
		default:
			if err = s.Inject([]byte("inject"), s.peer); err == nil {
				sent.Add(-1)
			}
		}
		switch {
		case err == nil:
			sent.Add(1)
		case errors.Is(err, os.ErrClosed):
			return
		case errors.Is(err, syscall.EAGAIN):
			time.Sleep(20 * time.Microsecond)
		default:
			t.Error(err)
			return
		}
	}
}

// reader takes completions and gives frames back, until it is told to stop.
func (s *side) reader(ctx context.Context, t *testing.T, received, answered *atomic.Int64) {
	var es [16]cq.Entry
	for {
		n, err := cq.ReadContext(ctx, s.q, es[:], cq.ReadOptions{})
		if errors.Is(err, cq.ErrAvail) {
			var e cq.ErrorEntry
			if s.q.ReadErr(&e) == nil {
				answered.Add(1)
			}
			continue
		}
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			return
		}
		for i := range es[:n] {
			if es[i].Flags&cq.FlagSend != 0 {
				answered.Add(1)
			} else {
				received.Add(1)
			}
		}
		if err := s.Release(es[:n]...); err != nil && !errors.Is(err, xdp.ErrFrame) {
			t.Error(err)
		}
	}
}
