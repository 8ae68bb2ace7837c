package device_test

import (
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/device"
)

// relay stands between applications and a server: what they say passes through it, as long as it
// lets it.
type relay struct {
	t        testing.TB
	path, to string
	held     sync.RWMutex // locked: no answer of the server passes
	mu       sync.Mutex
	conns    []*net.UnixConn // to applications
	all      sync.WaitGroup
}

func newRelay(t testing.TB, to string) *relay {
	t.Helper()
	r := &relay{t: t, path: filepath.Join(t.TempDir(), "relay"), to: to}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: r.path, Net: "unixpacket"})
	must(t, err)
	r.all.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			r.serve(c)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		r.all.Wait()
	})
	return r
}

func (r *relay) serve(app *net.UnixConn) {
	server, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: r.to, Net: "unixpacket"})
	if err != nil {
		_ = app.Close()
		return
	}
	r.mu.Lock()
	r.conns = append(r.conns, app)
	r.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { r.pass(app, server, false) })
	both.Go(func() { r.pass(server, app, true) })
	r.all.Go(func() {
		both.Wait()
		_ = errors.Join(app.Close(), server.Close())
	})
}

// pass copies messages from one end to the other until there are no more, and says that then.
func (r *relay) pass(from, to *net.UnixConn, hold bool) {
	buf := make([]byte, 4096)
	for {
		n, fds, err := shm.RecvFDs(from, buf, 8)
		if err != nil || n == 0 {
			break
		}
		if hold && device.IsDone(buf[:n]) {
			r.gate()
		}
		err = shm.SendFDs(to, buf[:n], fds...)
		shm.CloseFDs(fds)
		if err != nil {
			break
		}
	}
	_ = to.CloseWrite()
	_ = from.CloseRead()
}

// gate waits while answers are held back.
func (r *relay) gate() {
	r.held.RLock()
	defer r.held.RUnlock()
}

// lie has the application of the last connection hear something from the server.
func (r *relay) lie(b []byte) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	must(r.t, shm.SendFDs(r.conns[len(r.conns)-1], b))
}

// hears waits for news, and goes on with the traffic meanwhile.
func (l *ledger) hears(events <-chan device.Event, kind device.EventKind) (ev device.Event) {
	l.t.Helper()
	await(l.t, kind.String(), func() bool {
		_ = l.post(1)
		l.drain()
		select {
		case ev = <-events:
			return true
		default:
			return false
		}
	})
	if ev.Kind != kind {
		l.t.Fatalf("%+v in place of %v", ev, kind)
	}
	return ev
}

// TestPartsOnce: an application that hangs up on a server which lives, and is in the middle of its
// sends, has one completion of each all the same.
func TestPartsOnce(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	way := newRelay(t, r.path)
	events := make(chan device.Event, 100)
	e, err := device.Dial(t.Context(), way.path, device.Request{Ports: []uint16{5001},
		Notify: func(ev device.Event) { events <- ev }})
	must(t, err)
	defer func() { must(t, e.Close()) }()
	l := newLedger(t, e, addrOf(r.peer(6001)))
	cancelled := 0
	for range 20 {
		for range 20 {
			_ = l.post(1 << 10)
			l.drain()
		}
		way.lie(device.Done()) // an answer that nobody asked for
		gone := l.hears(events, device.EventGone)
		if !errors.Is(gone.Err, device.ErrProtocol) {
			t.Fatalf("%+v", gone)
		}
		cancelled += gone.Cancelled
		l.hears(events, device.EventBack)
		l.settle()
	}
	l.drain()
	if l.lost != cancelled {
		t.Errorf("%d sends were cancelled, %d were told", l.lost, cancelled)
	}
	t.Logf("%d sent, %d cancelled", l.sent, l.lost)
}

// TestSlowStart: a server that takes longer to answer than an application waits for a server, since
// it is stopped for one, is not hung up on once sends are accepted for it.
func TestSlowStart(t *testing.T) {
	shmtest.Conforms(t)
	const patience = 1500 * time.Millisecond
	defer device.SetHelloWait(patience)()
	r := newRig(t, device.Config{})
	way := newRelay(t, r.path)
	events := make(chan device.Event, 100)
	e, err := device.Dial(t.Context(), way.path, device.Request{Ports: []uint16{5000},
		Notify: func(ev device.Event) { events <- ev }})
	must(t, err)
	defer func() { must(t, e.Close()) }()
	l := newLedger(t, e, addrOf(r.peer(6000)))
	way.held.Lock()
	way.lie(device.Done())
	gone := l.hears(events, device.EventGone)
	await(t, "a server to send to", func() bool { return l.post(1) == nil })
	time.Sleep(patience + 100*time.Millisecond)
	if len(events) != 0 {
		t.Errorf("while the server is silent: %+v", <-events)
	}
	way.held.Unlock()
	l.hears(events, device.EventBack)
	l.settle()
	if l.lost != gone.Cancelled || len(events) != 0 {
		t.Errorf("%d sends lost, %d of them before, %d events", l.lost, gone.Cancelled, len(events))
	}
}

// TestFrozenAsking: an answer that lies unread for however long, since its reader was stopped, is
// the answer to the question all the same.
func TestFrozenAsking(t *testing.T) {
	t.Parallel()
	ours, theirs := pairOfConns(t)
	asks, reads, err := device.Asking(ours, 5007)
	must(t, err)
	_, _, err = shm.RecvFDs(theirs, make([]byte, 512), 0)
	must(t, err)
	must(t, shm.SendFDs(theirs, device.Done()))
	select {
	case err := <-reads:
		t.Fatalf("hung up: %v", err)
	case <-time.After(stopped):
	}
	must(t, asks())
	must(t, shm.SendFDs(theirs, device.Done()))
	if err := <-reads; !errors.Is(err, device.ErrProtocol) {
		t.Errorf("an answer to nothing: %v", err)
	}
}

func pairOfConns(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pair")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	must(t, err)
	defer l.Close()
	a, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	must(t, err)
	b, err = l.AcceptUnix()
	must(t, err)
	t.Cleanup(func() { _ = errors.Join(a.Close(), b.Close()) })
	_ = a.SetDeadline(time.Now().Add(time.Minute))
	return a, b
}
