package device_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/shmtest/flip"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/testdata"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

// bothUsers allows root, and nobody a few ports.
func bothUsers() []device.Allow {
	return []device.Allow{{ID: 0}, {ID: nobody, First: 5001, Last: 5099}}
}

// nobody is a user without any privilege; its group is the same number.
const nobody = shmtest.Other

// app starts an application in another process, of a user without privilege.
func (r *rig) app(port int, env ...string) *shmtest.Proc {
	return startApp(r.t, r.path, port, env...)
}

func startApp(t testing.TB, path string, port int, env ...string) *shmtest.Proc {
	t.Helper()
	return start(t, appCommand(t, "device-app", path, port, env...))
}

func appCommand(t testing.TB, role, path string, port int, env ...string) *exec.Cmd {
	t.Helper()
	cmd := shmtest.Child(t, role, append(env, "PATH_OF="+path, fmt.Sprintf("PORT=%d", port))...)
	shmtest.AsOther(t, cmd)
	return cmd
}

// settled returns the number of descriptors when it has not changed for a while.
func settled(t testing.TB) int {
	t.Helper()
	n, same := len(shmtest.Descriptors()), 0
	for same < 20 {
		time.Sleep(5 * time.Millisecond)
		if now := len(shmtest.Descriptors()); now != n {
			n, same = now, 0
		}
		same++
	}
	return n
}

// TestAppsKilled: applications that are killed at random moments of their traffic give everything
// back within a second, and one that lives on notices nothing.
func TestAppsKilled(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	const kills = 12
	r := newRig(t, device.Config{Frames: 1024, Allow: bothUsers()})
	peer := r.peer(6000)
	e := r.dial(device.Request{Name: "survivor", Ports: []uint16{5000}})
	l := newLedger(t, e, addrOf(peer))
	stop := make(chan struct{})
	var echoed atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() { answerSurvivor(peer, &echoed) })
	wg.Go(func() { floodOthers(r, peer, stop) })
	before := 0
	for i := range kills {
		env := ""
		if i%3 == 2 {
			env = "HOLD=1"
		}
		p := r.app(5001+i%2, env)
		if before == 0 {
			await(t, "an echo", func() bool { return echoed.Load() > 0 })
		}
		until := time.Now().Add(time.Duration(rand.IntN(20e6)))
		for time.Now().Before(until) {
			_ = l.post(4)
			l.drain()
		}
		must(t, p.Process.Kill())
		at := time.Now()
		await(t, "the end of the application", func() bool {
			_ = l.post(4)
			l.drain()
			return len(r.server.Stats().Apps) == 1
		})
		if took := time.Since(at); took > 30*time.Second { // on a machine that is all but stuck
			t.Errorf("kill %d: everything was back after %v", i, took)
		}
		_ = p.Wait()
		if before == 0 {
			before = settled(t)
		}
		await(t, "the last descriptor", func() bool {
			_ = l.post(4)
			l.drain()
			return len(shmtest.Descriptors()) <= before
		})
	}
	close(stop)
	got := l.echoes
	await(t, "traffic of the survivor", func() bool {
		_ = l.post(4)
		l.drain()
		return l.echoes > got
	})
	l.settle()
	if l.lost != 0 || e.Stats().Reconnects != 0 {
		t.Errorf("the survivor lost %d sends, %+v", l.lost, e.Stats())
	}
	await(t, "the last send", func() bool { return r.server.Stats().SendsInUse == 0 })
	s := r.server.Stats()
	if sum, all := frameSum(s); sum != all || s.Evicted != kills {
		t.Errorf("%d of %d frames; %+v", sum, all, s)
	}
	must(t, peer.Close())
	wg.Wait()
	must(t, r.reported())
}

// answerSurvivor is the wire's other end: it answers port 5000, and counts what the others echo.
func answerSurvivor(peer *net.UDPConn, echoed *atomic.Int64) {
	buf := make([]byte, 2048)
	for {
		n, from, err := peer.ReadFromUDPAddrPort(buf)
		switch {
		case err != nil:
			return
		case from.Port() == 5000:
			_, _ = peer.WriteToUDPAddrPort(buf[:n], from)
		default:
			echoed.Add(1)
		}
	}
}

// floodOthers sends to the applications that are killed.
func floodOthers(r *rig, peer *net.UDPConn, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		for port := uint16(5001); port < 5003; port++ {
			_, _ = peer.WriteToUDPAddrPort([]byte("flood"), r.target(port))
		}
		time.Sleep(20 * time.Microsecond)
	}
}

// TestIsolation: each application sees its own packets and nothing else, in memory that is its own,
// and one that keeps all its frames is the only one to lose packets.
func TestIsolation(t *testing.T) {
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	a := r.dial(device.Request{Name: "a", Ports: []uint16{5001}, Frames: 32})
	b := r.dial(device.Request{Name: "b", Ports: []uint16{5002}, Frames: 32})
	peer := r.peer(6000)
	for i := range 100 { // nobody reads b
		for port := uint16(5001); port < 5003; port++ {
			text := fmt.Sprintf("secret of %d: %d", port, i)
			if _, err := peer.WriteToUDPAddrPort([]byte(text), r.target(port)); err != nil {
				t.Fatal(err)
			}
		}
		entry := next(t, a)
		if _, err := b.View(&entry); err == nil {
			t.Fatal("a frame of one application is in the memory of another")
		}
		if got := text(t, a, &entry); got != fmt.Sprintf("secret of 5001: %d", i) {
			t.Fatalf("got %q", got)
		}
	}
	await(t, "all packets", func() bool { return b.Stats().Received+b.Stats().NoFrame == 100 })
	if s := a.Stats(); s.Received != 100 || s.NoFrame != 0 || s.NoRoom != 0 {
		t.Errorf("a: %+v", s)
	}
	if s := b.Stats(); s.Received != 32 || s.NoFrame != 68 {
		t.Errorf("b: %+v", s)
	}
	for range 32 {
		entry := next(t, b)
		text(t, b, &entry)
	}
	if _, err := peer.WriteToUDPAddrPort([]byte("again"), r.target(5002)); err != nil {
		t.Fatal(err)
	}
	entry := next(t, b)
	if got := text(t, b, &entry); got != "again" {
		t.Errorf("got %q", got)
	}
}

// stopped is longer than either side waits before it looks again, or an answer may lie unread.
const stopped = 1300 * time.Millisecond

// TestServerStopped: a server that is stopped is not dead: no send is cancelled, and all are done
// when it goes on.
func TestServerStopped(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	shmtest.Long(t)
	r := newRemote(t)
	to := r.echo(6000)
	server := r.serve()
	e := dial(t, r.path, device.Request{Ports: []uint16{5000},
		Notify: func(ev device.Event) { t.Errorf("%+v", ev) }})
	l := newLedger(t, e, to)
	for range 2 {
		before := l.echoes
		await(t, "traffic", func() bool { _ = l.post(8); l.drain(); return l.echoes > before+50 })
		server.Halt(t)
		for until := time.Now().Add(stopped); time.Now().Before(until); time.Sleep(time.Millisecond) {
			_ = l.post(1) // until there is no slot
			l.drain()
		}
		server.GoOn(t)
		l.settle()
	}
	if l.lost != 0 || e.Stats().Reconnects != 0 {
		t.Errorf("%d sends were lost, %+v", l.lost, e.Stats())
	}
	must(t, e.Close())
	terminate(t, server)
}

// TestAppStopped: an application that is stopped keeps its port, its frames and its place; packets
// that it does not take are dropped and counted, and nobody else notices.
func TestAppStopped(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, device.Config{Allow: bothUsers()})
	l := bystander(r)
	p := r.app(5001)
	peer := r.peer(6001)
	count := func() (a device.AppStats) {
		for _, a = range r.server.Stats().Apps {
			if a.Name == "echo" {
				return a
			}
		}
		t.Fatal("the application is gone")
		return a
	}
	p.Halt(t)
	flood := func() {
		for range 16 {
			_, _ = peer.WriteToUDPAddrPort([]byte("flood"), r.target(5001))
		}
	}
	for until := time.Now().Add(stopped); time.Now().Before(until); time.Sleep(time.Millisecond) {
		flood()
		_ = l.post(4)
		l.drain()
	}
	l.settle()
	await(t, "all of its frames", func() bool {
		flood()
		a := count()
		return a.Loaned == a.Frames && a.NoFrame > 0 && len(a.Ports) == 1
	})
	l.goesOn()
	p.GoOn(t)
	await(t, "the frames", func() bool { a := count(); return a.Loaned == 0 && a.UnderWay == 0 })
	before := count().Received
	await(t, "a packet", func() bool { flood(); return count().Received > before })
	if s := r.server.Stats(); s.Evicted != 0 || l.lost != 0 {
		t.Errorf("%+v, %d sends of the other one lost", s, l.lost)
	}
	p.Stop(t)
}

const envScene = "SHMRING_TEST_SCENE"

func init() {
	roles["flip"] = func() { flip.Play(device.FlipScenes()[os.Getenv(envScene)]) }
}

var flipFull = flag.Bool("flip.full", false, "flip in more ways (a minute)")

// TestFlip changes every word of a command between any two loads that the device process makes of
// it, as cq.TestFlip does with entries.
func TestFlip(t *testing.T) {
	names := slices.Sorted(maps.Keys(device.FlipScenes()))
	must(t, testdata.CheckFrozen(testdata.FrozenDeviceFlip, names))
	var o flip.Options
	if *flipFull {
		o.Values = flip.AllValues
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			shmtest.Require(t, "children", flip.Possible())
			dir, err := os.MkdirTemp(os.Getenv(shm.EnvDir), "flip") // the child is killed in the end
			must(t, err)
			t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
			s := flip.Attack(t, shmtest.Child(t, "flip", envScene+"="+name, shm.EnvDir+"="+dir),
				o)
			t.Log(&s)
			if s.Loaded == 0 && !t.Failed() {
				t.Error("the call looks at none of the words")
			}
		})
	}
}

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

// TestTakeWhenTold: who is told that there is a server again can ask it for a port at once.
func TestTakeWhenTold(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	server := r.serve()
	taken, endpoint := make(chan error, 1), make(chan *device.Endpoint, 1)
	endpoint <- dial(t, r.path, device.Request{Ports: []uint16{5000}, Notify: func(ev device.Event) {
		if ev.Err == nil {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			taken <- (<-endpoint).Take(ctx, 5001)
		}
	}})
	must(t, server.Process.Kill())
	_ = server.Wait()
	server = r.serve()
	must(t, <-taken)
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
