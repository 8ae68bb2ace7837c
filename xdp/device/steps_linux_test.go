//go:build shmring_steps

package device_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp/device"
)

func init() { roles["device-life"] = lifeChild }

// stepsOf returns the labels that begin with a prefix.
func stepsOf(prefix string) (ls []crash.Label) {
	for _, l := range crash.Labels() {
		if strings.HasPrefix(l.String(), prefix) {
			ls = append(ls, l)
		}
	}
	return ls
}

// seldom are steps that are passed once in the life of an application or of a port.
var seldom = []crash.Label{crash.DevBooked, crash.DevGranted, crash.DevJoined, crash.DevAttached,
	crash.DevSteered, crash.DevOwned, crash.DevUnsteered, crash.DevForgotten, crash.DevUnported,
	crash.DevUnbooked, crash.DevFreed}

// TestServerStep: wherever a server dies, each send of its applications ends once, and everything
// goes on with the next server.
func TestServerStep(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	to := r.echo(6000)
	server := r.serve()
	events := make(chan device.Event, 100)
	e := dial(t, r.path, device.Request{Ports: []uint16{5000},
		Notify: func(ev device.Event) { events <- ev }})
	l := newLedger(t, e, to)
	for _, step := range stepsOf("dev-") {
		server.Kill()
		l.hears(events, true)
		nth := 30
		if slices.Contains(seldom, step) {
			nth = 3
		}
		server = r.serve(fmt.Sprintf("%s=%v:%d", crash.Env, step, nth))
		l.hears(events, false)
		ctx, cancel := context.WithCancel(t.Context())
		others := make(chan error, 1)
		go func() { others <- comeAndGo(ctx, r.path) }()
		l.hears(events, true)
		l.settle()
		cancel()
		must(t, <-others)
		dies(t, server, step)
		server = r.serve()
		l.hears(events, false)
		before := l.echoes
		await(t, "traffic after "+step.String(), func() bool {
			_ = l.post(4)
			l.drain()
			return l.echoes > before+20
		})
		l.settle()
	}
	terminate(t, server)
}

// comeAndGo has endpoints that take ports, drop them and leave, as long as there is a server.
func comeAndGo(ctx context.Context, path string) error {
	for ctx.Err() == nil {
		e, err := device.Dial(ctx, path, device.Request{Ports: []uint16{5050}, NoReconnect: true})
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		for range 3 {
			_ = e.Take(ctx, 5051)
			_ = e.Drop(ctx, 5051)
		}
		if err := e.Close(); err != nil {
			return err
		}
	}
	return nil
}

// lifeChild is an application that does everything, until it dies at its step.
func lifeChild() {
	to := shmtest.Needs(netip.ParseAddrPort(os.Getenv("TO")))
	port := shmtest.Needs(strconv.ParseUint(os.Getenv("PORT"), 10, 16))
	go func() { // nobody is to outlive the test
		shmtest.UntilTold()
		os.Exit(3)
	}()
	shmtest.Say("ready")
	ctx := context.Background()
	eq, err := cq.CreateEvents(cq.Unnamed("events"), cq.EventOptions{Write: true, Size: 4096})
	need(err)
	q := device.Request{Name: "life", Ports: []uint16{uint16(port)}, Events: eq}
	e := shmtest.Needs(device.Dial(ctx, os.Getenv("PATH_OF"), q))
	shmtest.Say("up")
	var es [16]cq.Entry
	for i := 0; ; i++ {
		_ = e.SendTo([]byte("send of a life"), 0, to, 0)
		if i%16 == 0 {
			_ = e.Take(ctx, uint16(port)+1)
			_ = e.Drop(ctx, uint16(port)+1)
		}
		n, err := cq.ReadContext(ctx, e.Queue(), es[:], cq.ReadOptions{Timeout: time.Millisecond})
		if errors.Is(err, cq.ErrAvail) {
			var x cq.ErrorEntry
			_ = e.Queue().ReadErr(&x)
		}
		for k := range es[:n] {
			if es[k].Flags&cq.FlagFrame != 0 {
				_ = e.Release(es[k])
			}
		}
	}
}

// life starts one that dies at a step.
func life(t testing.TB, path string, port int, to netip.AddrPort, step crash.Label) *shmtest.Proc {
	t.Helper()
	nth := 1
	if step == crash.AppFilled || step == crash.AppPosted || step == crash.AppReturned {
		nth = 20
	}
	cmd := shmtest.Child(t, "device-life", "PATH_OF="+path, fmt.Sprintf("PORT=%d", port),
		"TO="+to.String(), fmt.Sprintf("%s=%v:%d", crash.Env, step, nth))
	shmtest.AsOther(t, cmd)
	return start(t, cmd)
}

// dies waits for that.
func dies(t testing.TB, p *shmtest.Proc, step crash.Label) {
	t.Helper()
	late := time.AfterFunc(time.Minute, func() { _ = p.Process.Signal(syscall.SIGTERM) })
	defer late.Stop()
	_ = p.Wait()
	if ws := p.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
		t.Fatalf("%v: %v", step, p.ProcessState)
	}
}

// needsDeath are steps that an application passes when its server has died.
var needsDeath = []crash.Label{crash.AppNoticed, crash.AppLost, crash.AppCancelled, crash.AppTold,
	crash.AppMapped, crash.AppSwitched}

// TestAppStep: wherever an application dies, the server has everything back, and another one is
// not disturbed.
func TestAppStep(t *testing.T) {
	t.Parallel()
	r := newRig(t, device.Config{Frames: 1024, Allow: bothUsers()})
	l := bystander(r)
	l.goesOn()
	lanes := r.server.LaneBytes()
	to := l.to
	for _, step := range stepsOf("app-") {
		if slices.Contains(needsDeath, step) {
			continue
		}
		dies(t, life(t, r.path, 5001, to, step), step)
		await(t, "the end of it", func() bool {
			s := r.server.Stats()
			return len(s.Apps) == 1 && r.server.LaneBytes() == lanes && r.server.Places() == 1
		})
		// Its ports are free, and its budget is.
		e := r.dial(device.Request{Ports: []uint16{5001, 5002}})
		must(t, e.Close())
	}
	l.goesOn()
	await(t, "the last send", func() bool { return r.server.Stats().SendsInUse == 0 })
	if sum, all := frameSum(r.server.Stats()); sum != all {
		t.Errorf("%d of %d frames", sum, all)
	}
	if s := r.server.Stats(); l.e.Stats().Reconnects != 0 {
		t.Errorf("%+v", s)
	}
}

// TestOrphanStep: an application that dies while it goes from one server to the next leaves nothing
// at either.
func TestOrphanStep(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	to := r.echo(6000)
	peer := xdptest.UDP(t, r.pair.A, 6001)
	for _, step := range needsDeath {
		server := r.serve()
		p := life(t, r.path, 5001, to, step)
		p.Says(t, "up")
		server.Kill()
		server = r.serve()
		dies(t, p, step)
		next := startApp(t, r.path, 5001)
		ask(t, peer, r, 5001, 5)
		next.Stop(t)
		terminate(t, server)
	}
}

func init() {
	roles["device-halting-server"] = haltingServerChild
	roles["device-halting-app"] = haltingAppChild
}

const (
	envHalt = "SHMRING_TEST_HALT"
	// shortHello is how long a hello may take in which somebody is stopped for as long as halted.
	shortHello = 500 * time.Millisecond
	halted     = 2 * shortHello
)

// haltingServerChild is in a hurry until it has been stopped.
func haltingServerChild() {
	made = func(s *device.Server) {
		s.SetHelloTimeout(shortHello)
		shmtest.HaltAt(os.Getenv(envHalt), 1, func() { s.SetHelloTimeout(time.Minute) })
	}
	serverChild()
}

func haltingAppChild() {
	shmtest.HaltAt(os.Getenv(envHalt), 1, func() {})
	appChild()
}

func (r *remote) serveHalting(step string) *shmtest.Proc {
	r.t.Helper()
	cmd := shmtest.Child(r.t, "device-halting-server", append(world(r.pair, r.path),
		"ALLOW="+r.allow, envHalt+"="+step)...)
	cmd.ExtraFiles = []*os.File{r.pair.B.NetNS()}
	return start(r.t, cmd)
}

// stops waits until all threads of the process are stopped.
func stops(t testing.TB, p *shmtest.Proc) {
	t.Helper()
	await(t, "the stop", func() bool { return p.Halted() })
}

func goOn(t testing.TB, p *shmtest.Proc) {
	t.Helper()
	if !p.Halted() {
		t.Error("it went on by itself")
	}
	p.GoOn(t)
}

// small wants so little that there is room for those too who gave up, and whom the server has not
// seen go yet.
func small(port uint16) device.Request {
	return device.Request{Ports: []uint16{port}, Frames: 32, Sends: 16}
}

// TestServerStoppedAtStep: a server that is stopped in the middle of a hello, for longer than it
// or an application waits, is not dead for anybody: nobody takes its place, who has no time is told
// that it took too long, and whoever waits is served when it goes on.
func TestServerStoppedAtStep(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	to := r.echo(6000)
	for _, step := range []crash.Label{crash.DevBooked, crash.DevGranted, crash.DevJoined,
		crash.DevAttached} {
		t.Run(step.String(), func(t *testing.T) {
			server := r.serveHalting(step.String())
			defer server.Kill() // or the next one finds the interface taken
			type dialed struct {
				e   *device.Endpoint
				err error
			}
			done := make(chan dialed, 1)
			var stopped atomic.Bool
			go func() {
				e, err := device.Dial(t.Context(), r.path, small(5000))
				// A server without time for a hello in a hurry has not come to the step.
				for errors.Is(err, device.ErrSlow) && !stopped.Load() {
					e, err = device.Dial(t.Context(), r.path, small(5000))
				}
				done <- dialed{e, err}
			}()
			stops(t, server)
			stopped.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), halted)
			_, err := device.Dial(ctx, r.path, small(5001))
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("with a server that is stopped: %v", err)
			}
			if _, err := device.Listen(r.path); !errors.Is(err, device.ErrServing) {
				t.Errorf("in its place: %v", err)
			}
			goOn(t, server)
			got := <-done
			must(t, got.err)
			l := newLedger(t, got.e, to)
			l.goesOn()
			if got.e.Stats().Reconnects != 0 {
				t.Errorf("%+v", got.e.Stats())
			}
			other := shmtest.Got(device.Dial(t.Context(), r.path, small(5002))).Or(t)
			must(t, errors.Join(other.Close(), got.e.Close()))
			terminate(t, server)
		})
	}
}

// TestNextServerStoppedAtStep: likewise where an application that has lost its server meets the
// next one: its calls say that there is none, and each send ends once.
func TestNextServerStoppedAtStep(t *testing.T) {
	defer device.SetHelloWait(halted)()
	r := newRemote(t)
	to := r.echo(6000)
	server := r.serve()
	events := make(chan device.Event, 100)
	request := small(5000)
	request.Notify = func(ev device.Event) { events <- ev }
	e := dial(t, r.path, request)
	l := newLedger(t, e, to)
	for _, step := range []crash.Label{crash.DevGranted, crash.DevAttached} {
		l.goesOn()
		server.Kill()
		l.hears(events, true)
		server = r.serveHalting(step.String())
		stops(t, server)
		until := time.Now().Add(halted + shortHello)
		for ; time.Now().Before(until); time.Sleep(time.Millisecond) {
			_ = l.post(1) // while it has been granted nothing, ErrServerGone
			l.drain()
		}
		if len(events) != 0 {
			t.Errorf("%v: while it is stopped: %+v", step, <-events)
		}
		goOn(t, server)
		l.hears(events, false)
		l.settle()
		l.lost = 0 // what the dead one had
	}
	if len(events) != 0 {
		t.Errorf("more events: %+v", <-events)
	}
	terminate(t, server)
}

// TestAppStoppedAtStep: an application that is stopped in the middle of its hello keeps nobody
// from being served. It loses what was booked for it, but not its place if it has one already, and
// goes on by itself.
func TestAppStoppedAtStep(t *testing.T) {
	t.Parallel()
	r := newRig(t, device.Config{Allow: bothUsers()})
	l := bystander(r)
	l.goesOn()
	lanes := r.server.LaneBytes()
	peer := r.peer(6001)
	for _, step := range []crash.Label{crash.AppHello, crash.AppMemory, crash.AppStarting,
		crash.AppStarted} {
		r.server.SetHelloTimeout(shortHello)
		p := shmtest.Start(t, appCommand(t, "device-halting-app", r.path, 5001,
			envHalt+"="+step.String()))
		stops(t, p)
		// Who has said the last word is served, if that was in time.
		said := step == crash.AppStarting || step == crash.AppStarted
		if said {
			time.Sleep(halted)
		} else {
			var e *device.Endpoint
			await(t, step.String()+": its port", func() bool {
				var err error
				if e, err = device.Dial(t.Context(), r.path, small(5001)); err == nil {
					return true
				}
				if !errors.Is(err, device.ErrPortTaken) {
					t.Fatal(err)
				}
				return false
			})
			must(t, e.Close())
			await(t, step.String()+": what was booked", func() bool {
				return r.server.Places() == 1 && r.server.LaneBytes() == lanes
			})
		}
		l.goesOn()
		r.server.SetHelloTimeout(time.Minute)
		if n := len(r.server.Stats().Apps); n == 2 && !said || n == 1 && step == crash.AppStarted {
			t.Errorf("%v: %d applications", step, n)
		}
		goOn(t, p)
		p.Says(t, "ready")
		await(t, "an answer", func() bool { return answers(peer, r) })
		p.Stop(t)
		await(t, "its end", func() bool { return r.server.LaneBytes() == lanes })
	}
	l.goesOn()
	if l.e.Stats().Reconnects != 0 {
		t.Errorf("%+v", l.e.Stats())
	}
}

// answers asks once.
func answers(peer *net.UDPConn, r *rig) bool {
	_, _ = peer.WriteToUDPAddrPort([]byte("question"), r.target(5001))
	_ = peer.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	n, _, err := peer.ReadFromUDPAddrPort(make([]byte, 64))
	return err == nil && n == len("question")
}
