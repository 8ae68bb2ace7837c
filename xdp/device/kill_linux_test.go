package device_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/shmtest/flip"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/testdata"
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
		must(t, server.Process.Signal(syscall.SIGSTOP))
		for until := time.Now().Add(stopped); time.Now().Before(until); time.Sleep(time.Millisecond) {
			_ = l.post(1) // until there is no slot
			l.drain()
		}
		must(t, server.Process.Signal(syscall.SIGCONT))
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
	must(t, p.Process.Signal(syscall.SIGSTOP))
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
	must(t, p.Process.Signal(syscall.SIGCONT))
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
	if err := testdata.CheckFrozen(testdata.FrozenDeviceFlip, names); err != nil {
		t.Error(err)
	}
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
