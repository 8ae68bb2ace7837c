package device_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp/device"
)

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
	e, err := device.Dial(t.Context(), r.path, device.Request{Ports: []uint16{5000},
		Notify: func(ev device.Event) { t.Errorf("%+v", ev) }})
	must(t, err)
	l := newLedger(t, e, to)
	for range 2 {
		before := l.echoes
		await(t, "traffic", func() bool { _ = l.post(8); l.drain(); return l.echoes > before+50 })
		must(t, server.cmd.Process.Signal(syscall.SIGSTOP))
		for until := time.Now().Add(stopped); time.Now().Before(until); time.Sleep(time.Millisecond) {
			_ = l.post(1) // until there is no slot
			l.drain()
		}
		must(t, server.cmd.Process.Signal(syscall.SIGCONT))
		l.settle()
	}
	if l.lost != 0 || e.Stats().Reconnects != 0 {
		t.Errorf("%d sends were lost, %+v", l.lost, e.Stats())
	}
	must(t, e.Close())
	server.end()
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
	must(t, p.cmd.Process.Signal(syscall.SIGSTOP))
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
	must(t, p.cmd.Process.Signal(syscall.SIGCONT))
	await(t, "the frames", func() bool { a := count(); return a.Loaned == 0 && a.UnderWay == 0 })
	before := count().Received
	await(t, "a packet", func() bool { flood(); return count().Received > before })
	if s := r.server.Stats(); s.Evicted != 0 || l.lost != 0 {
		t.Errorf("%+v, %d sends of the other one lost", s, l.lost)
	}
	must(t, p.in.Close())
	must(t, p.cmd.Wait())
}
