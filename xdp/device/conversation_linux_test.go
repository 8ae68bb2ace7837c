package device_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
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

// news is what an event says.
func news(gone bool) string {
	return map[bool]string{true: "the end of a server", false: "another server"}[gone]
}

// hears waits for news, and goes on with the traffic meanwhile.
func (l *ledger) hears(events <-chan device.Event, gone bool) (ev device.Event) {
	l.t.Helper()
	await(l.t, news(gone), func() bool {
		_ = l.post(1)
		l.drain()
		select {
		case ev = <-events:
			return true
		default:
			return false
		}
	})
	if (ev.Err != nil) != gone {
		l.t.Fatalf("%+v in place of %v", ev, news(gone))
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
	e := dial(t, way.path, device.Request{Ports: []uint16{5001},
		Notify: func(ev device.Event) { events <- ev }})
	l := newLedger(t, e, addrOf(r.peer(6001)))
	cancelled := 0
	for range 20 {
		for range 20 {
			_ = l.post(1 << 10)
			l.drain()
		}
		way.lie(device.Done()) // an answer that nobody asked for
		gone := l.hears(events, true)
		if !errors.Is(gone.Err, device.ErrProtocol) {
			t.Fatalf("%+v", gone)
		}
		cancelled += gone.Cancelled
		l.hears(events, false)
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
	e := dial(t, way.path, device.Request{Ports: []uint16{5000},
		Notify: func(ev device.Event) { events <- ev }})
	l := newLedger(t, e, addrOf(r.peer(6000)))
	way.held.Lock()
	way.lie(device.Done())
	gone := l.hears(events, true)
	await(t, "a server to send to", func() bool { return l.post(1) == nil })
	time.Sleep(patience + 100*time.Millisecond)
	if len(events) != 0 {
		t.Errorf("while the server is silent: %+v", <-events)
	}
	way.held.Unlock()
	l.hears(events, false)
	l.settle()
	if l.lost != gone.Cancelled || len(events) != 0 {
		t.Errorf("%d sends lost, %d of them before, %d events", l.lost, gone.Cancelled, len(events))
	}
}

// TestUnreadAnswers: an application that asks and asks, and reads no answer, is hung up on; the
// server can be closed, and somebody else is served, all the same.
func TestUnreadAnswers(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	l := bystander(r)
	c := r.admitted()
	await(t, "the application", func() bool { return len(r.server.Stats().Apps) == 2 })
	ask := device.Take(5001)
	for end := time.Now().Add(time.Minute); ; { // until it is hung up on
		if time.Now().After(end) {
			t.Fatal("it is not hung up on")
		}
		_ = c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		err := shm.SendFDs(c, ask)
		if errors.Is(err, os.ErrDeadlineExceeded) { // as the server has no room for its answers
			l.goesOn()
		} else if err != nil {
			break
		}
	}
	await(t, "the end of it", func() bool { return len(r.server.Stats().Apps) == 1 })
	l.goesOn()
}

// admitted is the connection of an application that the server serves, and that says nothing.
func (r *rig) admitted() *net.UnixConn {
	t := r.t
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	c, sends, slot := r.greeted()
	p := shmtest.Got(device.NewPayload(sends, slot)).Or(t)
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	must(t, shm.SendFDs(c, device.Memory(), p.Object().FD()))
	q := shmtest.Have(cq.Create(cq.Unnamed("unread"), cq.Options{Size: 1024, MaxLanes: 4,
		Trust: cq.CrossUser})).In(t)
	for range 2 {
		must(t, q.Accept(ctx, c))
	}
	shmtest.Have(cq.Attach(ctx, cq.Over(c), cq.WriterOptions{Trust: cq.CrossUser})).In(t)
	_, _, err := shm.RecvFDs(c, make([]byte, 256), 0) // ready
	must(t, err)
	must(t, shm.SendFDs(c, device.Start()))
	return c
}

// TestEarlyQuestion: a port that is asked for while a session has not started is asked for when it
// has.
func TestEarlyQuestion(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	e := r.dial(device.Request{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, e.AskEarly(ctx, 5003))
}

// TestStrangers: who is not on the allow-list is told so and gets nothing, as often as he comes,
// and cannot fill the log with that.
func TestStrangers(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, device.Config{Allow: []device.Allow{{ID: 1<<31 - 7}}})
	const n = 200
	begin := time.Now()
	_, err := device.Dial(t.Context(), r.path, device.Request{})
	if !errors.Is(err, device.ErrRefused) {
		t.Error(err)
	}
	for range n - 1 {
		c := r.raw()
		ends(t, "a stranger", c)
		_ = c.Close()
	}
	await(t, "all refusals", func() bool { return r.server.Stats().Refused == n })
	r.mu.Lock()
	defer r.mu.Unlock()
	// Eight in the first second, and in each window of two seconds and more one and what it left out.
	most := 8 + 2*(1+int(time.Since(begin)/(2*time.Second)))
	if got := len(r.errs); got == 0 || got > most || !errors.Is(r.errs[0], device.ErrRefused) {
		t.Errorf("%d reports of %d refusals, of which %d may be told", got, n, most)
	}
}

// TestSaysWhy: an application that is hung up on is told why, and so is who looks after the server.
func TestSaysWhy(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	l := bystander(r)
	c := r.admitted()
	_, _, err := shm.RecvFDs(c, make([]byte, 256), 0) // done
	must(t, err)
	must(t, shm.SendFDs(c, device.Hello())) // once more
	buf := make([]byte, 256)
	_, _, err = shm.RecvFDs(c, buf, 0)
	must(t, err)
	no := device.Refused(buf)
	if !errors.Is(no, device.ErrProtocol) || !strings.Contains(no.Error(), "port") {
		t.Errorf("the application is told %v", no)
	}
	ends(t, "it", c)
	var told error
	await(t, "the report", func() bool { told = r.reported(); return told != nil })
	if !errors.Is(told, device.ErrProtocol) {
		t.Errorf("reported: %v", told)
	}
	l.goesOn()
}

// TestSaysWhyItEnds: an endpoint whose server is closed, or that the server throws out, hears the
// reason.
func TestSaysWhyItEnds(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	events := make(chan device.Event, 2)
	request := device.Request{Ports: []uint16{5001}, NoReconnect: true,
		Notify: func(ev device.Event) { events <- ev }}
	e := r.dial(request)
	to := addrOf(r.peer(6001))
	must(t, e.SendTo([]byte("x"), 0, to, 1))
	next(t, e)
	must(t, r.server.Unreadable(5001))
	must(t, e.SendTo([]byte("x"), 0, to, 2))
	if ev := <-events; ev.Err == nil || errors.Is(ev.Err, io.EOF) {
		t.Errorf("thrown out: %+v", ev)
	}
	await(t, "the report", func() bool { return r.reported() != nil })
	t.Run("closed", func(t *testing.T) {
		r := newRig(t, device.Config{})
		e = shmtest.Got(device.Dial(t.Context(), r.path, request)).Or(t)
	})
	defer func() { must(t, e.Close()) }()
	if ev := <-events; !errors.Is(ev.Err, device.ErrClosing) ||
		!errors.Is(ev.Err, syscall.ESHUTDOWN) {
		t.Errorf("closed: %+v", ev)
	}
}
