//go:build shmring_steps

package device_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp/device"
)

func init() { roles["device-life"] = func() { child("life", lifeChild) } }

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
	e, err := device.Dial(t.Context(), r.path, device.Request{Ports: []uint16{5000},
		Notify: func(ev device.Event) { events <- ev }})
	must(t, err)
	defer func() { must(t, e.Close()) }()
	l := newLedger(t, e, to)
	for _, step := range stepsOf("dev-") {
		server.kill()
		l.event(events, device.EventGone)
		nth := 30
		if slices.Contains(seldom, step) {
			nth = 3
		}
		server = r.serve(fmt.Sprintf("%s=%v:%d", crash.Env, step, nth))
		l.event(events, device.EventBack)
		ctx, cancel := context.WithCancel(t.Context())
		others := make(chan error, 1)
		go func() { others <- comeAndGo(ctx, r.path) }()
		l.event(events, device.EventGone)
		l.settle()
		cancel()
		must(t, <-others)
		_ = server.cmd.Wait()
		if ws := server.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
			t.Fatalf("%v: %v", step, server.cmd.ProcessState)
		}
		server = r.serve()
		l.event(events, device.EventBack)
		before := l.echoes
		await(t, "traffic after "+step.String(), func() bool {
			_ = l.post(4)
			l.drain()
			return l.echoes > before+20
		})
		l.settle()
	}
	server.end()
}

// event waits for an event, with traffic meanwhile.
func (l *ledger) event(events <-chan device.Event, kind device.EventKind) {
	l.t.Helper()
	await(l.t, kind.String(), func() bool {
		if l.post(4) != nil {
			time.Sleep(100 * time.Microsecond)
		}
		l.drain()
		select {
		case ev := <-events:
			if ev.Kind != kind {
				l.t.Fatalf("%+v instead of %v", ev, kind)
			}
			return true
		default:
			return false
		}
	})
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
func lifeChild() error {
	to, err := netip.ParseAddrPort(os.Getenv("TO"))
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(os.Getenv("PORT"), 10, 16)
	if err != nil {
		return err
	}
	go func() { // nobody is to outlive the test
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(3)
	}()
	fmt.Println("ready")
	ctx := context.Background()
	eq, err := cq.CreateEvents(cq.Unnamed("events"), cq.EventOptions{Write: true, Size: 4096})
	if err != nil {
		return err
	}
	q := device.Request{Name: "life", Ports: []uint16{uint16(port)}, Events: eq}
	e, err := device.Dial(ctx, os.Getenv("PATH_OF"), q)
	if err != nil {
		return err
	}
	fmt.Println("up")
	var es [16]cq.Entry
	for i := 0; ; i++ {
		_ = e.SendTo([]byte("send of a life"), to, 0)
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
				_ = e.Release(&es[k])
			}
		}
	}
}

// life starts one that dies at a step.
func life(t testing.TB, path string, port int, to netip.AddrPort, step crash.Label) *process {
	t.Helper()
	nth := 1
	if step == crash.AppFilled || step == crash.AppPosted || step == crash.AppReturned {
		nth = 20
	}
	cmd := shmtest.Child(t, "device-life", "PATH_OF="+path, fmt.Sprintf("PORT=%d", port),
		"TO="+to.String(), fmt.Sprintf("%s=%v:%d", crash.Env, step, nth))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	cmd.Path = "/proc/self/exe"
	return start(t, cmd)
}

// dies waits for that.
func (p *process) dies(step crash.Label) {
	p.t.Helper()
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		_ = p.cmd.Process.Kill()
		<-done
		p.t.Fatalf("%v was not reached", step)
	}
	if ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
		p.t.Fatalf("%v: %v", step, p.cmd.ProcessState)
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
		p := life(t, r.path, 5001, to, step)
		p.dies(step)
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
	peer := udp(t, r.pair.A, 6001)
	for _, step := range needsDeath {
		server := r.serve()
		p := life(t, r.path, 5001, to, step)
		p.line("up")
		server.kill()
		server = r.serve()
		p.dies(step)
		next := startApp(t, r.path, 5001)
		ask(t, peer, r, 5001, 5)
		must(t, next.in.Close())
		must(t, next.cmd.Wait())
		server.end()
	}
}
