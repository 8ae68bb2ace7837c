package device_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

func init() {
	roles["device-server"] = serverChild
	roles["device-app"] = appChild
}

// world is what a server in another process needs to know.
func world(p *veth.Pair, path string) []string {
	return []string{"PATH_OF=" + path, "ENDS=" + strings.Join([]string{p.B.Name, p.B.MAC.String(),
		p.B.Addr.String(), p.A.MAC.String(), p.A.Addr.String()}, " ")}
}

// made is what a role does with its server before it is served.
var made = func(*device.Server) {}

// serverChild serves the end of a pair whose namespace is descriptor 3, until it is terminated.
func serverChild() {
	ends := strings.Fields(os.Getenv("ENDS"))
	var local, remote veth.End
	local.Name = ends[0]
	local.MAC, _ = net.ParseMAC(ends[1])
	local.Addr = netip.MustParseAddr(ends[2])
	remote.MAC, _ = net.ParseMAC(ends[3])
	remote.Addr = netip.MustParseAddr(ends[4])
	var allow []device.Allow
	for text := range strings.FieldsSeq(os.Getenv("ALLOW")) {
		a := shmtest.Needs(device.ParseAllow(text))
		allow = append(allow, a)
	}
	runtime.LockOSThread()
	need(veth.Enter(3))
	s, err := device.NewServer(context.Background(), device.Config{Interface: local.Name, Allow: allow,
		Resolver: wires{&local, &remote},
		NoObject: true, // one that is killed would leave it to the next
		// Of one that was killed the kernel frees the queue when the machine has time for that.
		Socket: xdp.Options{BusyTimeout: time.Minute},
		Report: func(err error) { fmt.Fprintln(os.Stderr, "reported:", err) }})
	need(err)
	made(s)
	l := shmtest.Needs(device.Listen(os.Getenv("PATH_OF")))
	shmtest.Say("ready")
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	if err := s.Serve(ctx, l.UnixListener); ctx.Err() == nil {
		need(err)
	}
	need(errors.Join(s.Close(), l.Close()))
}

// start starts a child that says that it is ready.
func start(t testing.TB, cmd *exec.Cmd) *shmtest.Proc {
	t.Helper()
	p := shmtest.Start(t, cmd)
	p.Says(t, "ready")
	return p
}

// terminate has a server close.
func terminate(t testing.TB, server *shmtest.Proc) {
	t.Helper()
	must(t, server.Process.Signal(syscall.SIGTERM))
	must(t, server.Wait())
}

// remote is a pair with a server in another process on its end B.
type remote struct {
	t     testing.TB
	pair  *veth.Pair
	path  string
	allow string
}

func newRemote(t testing.TB) *remote {
	t.Helper()
	return &remote{t: t, pair: xdptest.NewPair(t, veth.Config{}), path: socketPath(t),
		allow: "uid:0 uid:65534,ports=5000-5099"}
}

func (r *remote) serve(env ...string) *shmtest.Proc {
	r.t.Helper()
	cmd := shmtest.Child(r.t, "device-server", append(append(world(r.pair, r.path),
		"ALLOW="+r.allow), env...)...)
	cmd.ExtraFiles = []*os.File{r.pair.B.NetNS()}
	return start(r.t, cmd)
}

// echo answers every datagram to a kernel socket at the other end.
func (r *remote) echo(port uint16) netip.AddrPort {
	c := xdptest.UDP(r.t, r.pair.A, port)
	echo(c)
	return addrOf(c)
}

// ledger checks that every send that was accepted ends exactly once.
type ledger struct {
	t                          testing.TB
	e                          *device.Endpoint
	to                         netip.AddrPort
	next                       uint64
	open                       map[uint64]bool
	echoes, sent, lost, others int
}

func newLedger(t testing.TB, e *device.Endpoint, to netip.AddrPort) *ledger {
	return &ledger{t: t, e: e, to: to, open: map[uint64]bool{}}
}

// post sends as much as is accepted.
func (l *ledger) post(most int) (err error) {
	l.t.Helper()
	for range most {
		text := fmt.Sprint("send ", l.next)
		if err = l.e.SendTo([]byte(text), 0, l.to, l.next); err != nil {
			if !errors.Is(err, device.ErrNoSlot) && !errors.Is(err, device.ErrServerGone) {
				l.t.Fatal(err)
			}
			return err
		}
		l.open[l.next] = true
		l.next++
	}
	return nil
}

// drain takes all completions that are there.
func (l *ledger) drain() {
	l.t.Helper()
	var es [32]cq.Entry
	for {
		n, err := cq.Read(l.e.Queue(), es[:])
		for i := range es[:n] {
			if es[i].Flags&cq.FlagFrame != 0 {
				l.frame(&es[i])
				continue
			}
			l.end(es[i].Context)
			l.sent++
		}
		switch {
		case errors.Is(err, cq.ErrWouldBlock):
			return
		case errors.Is(err, cq.ErrAvail):
			var x cq.ErrorEntry
			must(l.t, l.e.Queue().ReadErr(&x))
			if !errors.Is(&x, syscall.ECANCELED) {
				l.t.Fatalf("%+v", x)
			}
			l.end(x.Context)
			l.lost++
		case err != nil:
			l.t.Fatal(err)
		}
	}
}

func (l *ledger) end(context uint64) {
	l.t.Helper()
	if !l.open[context] {
		l.t.Fatalf("send %d ended twice, or was never made", context)
	}
	delete(l.open, context)
}

func (l *ledger) frame(entry *cq.Entry) {
	l.t.Helper()
	loan, err := l.e.View(entry)
	if err != nil {
		l.others++ // of a UMEM that is not mapped any more
		return
	}
	if !strings.HasPrefix(string(loan.Bytes()), "send ") {
		l.t.Fatalf("got %q", loan.Bytes())
	}
	loan.Release()
	if err := l.e.Release(*entry); err != nil && !errors.Is(err, device.ErrServerGone) {
		l.t.Fatal(err)
	}
	l.echoes++
}

// settle waits until every send has ended.
func (l *ledger) settle() {
	l.t.Helper()
	await(l.t, "the end of every send", func() bool { l.drain(); return len(l.open) == 0 })
}

// TestServerKilled: a server that is killed in the middle of traffic is one event, every send has
// its one completion or ECANCELED, and with the next server everything goes on.
func TestServerKilled(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	shmtest.Long(t)
	t.Run("copied", func(t *testing.T) { serverKilled(t, false) })
	t.Run("in place", func(t *testing.T) { serverKilled(t, true) })
}

func serverKilled(t *testing.T, inPlace bool) {
	r := newRemote(t)
	to := r.echo(6000)
	server := r.serve()
	events := make(chan device.Event, 100)
	eq := shmtest.Have(cq.CreateEvents(cq.Unnamed("events"), cq.EventOptions{Write: true})).In(t)
	e := dial(t, r.path, device.Request{Ports: []uint16{5000}, InPlace: inPlace,
		Notify: func(ev device.Event) { events <- ev }, Events: eq, Context: 77})
	l := newLedger(t, e, to)
	generation := e.Info().Generation
	for round := range 6 {
		before := l.echoes
		await(t, "traffic", func() bool { _ = l.post(8); l.drain(); return l.echoes > before+200 })
		for i := range round * 7 { // end at different points of a turn
			_ = l.post(i)
			runtime.Gosched()
		}
		must(t, server.Process.Kill())
		// Sends of which the server may have done any part, or sends that nobody took.
		for round%2 == 1 && !errors.Is(l.post(1), device.ErrServerGone) {
			l.drain()
		}
		_ = server.Wait()
		gone := <-events
		if gone.Err == nil || gone.Generation != generation {
			t.Fatalf("%+v", gone)
		}
		l.settle()
		server = r.serve()
		back := <-events
		if back.Err != nil || back.Generation <= generation {
			t.Fatalf("%+v after %d", back, generation)
		}
		generation = back.Generation
		told(t, eq, cq.EventPeerDeath, uint64(gone.Cancelled))
		told(t, eq, cq.EventConnected, generation)
		if len(events) != 0 {
			t.Fatalf("more events: %+v", <-events)
		}
	}
	before := l.echoes
	await(t, "traffic", func() bool { _ = l.post(8); l.drain(); return l.echoes > before+200 })
	l.settle()
	t.Logf("%d echoes, %d sent, %d cancelled", l.echoes, l.sent, l.lost)
	terminate(t, server)
}

func (r *remote) target(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(r.pair.B.Addr, port)
}

// told takes the next event.
func told(t testing.TB, eq *cq.EventQueue, kind cq.EventKind, data uint64) {
	t.Helper()
	var ev cq.Event
	shmtest.Got(eq.ReadContext(t.Context(), &ev, cq.ReadOptions{Timeout: time.Minute})).Or(t)
	if ev.Event != kind || ev.Data != data || ev.Context != 77 {
		t.Fatalf("%+v, want %v with %d", ev, kind, data)
	}
}
