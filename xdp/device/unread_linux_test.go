package device_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/device"
)

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
	c := r.raw()
	must(t, shm.SendFDs(c, device.Hello()))
	buf := make([]byte, 256)
	_, fds, err := shm.RecvFDs(c, buf, 2)
	must(t, err)
	shm.CloseFDs(fds)
	sends, slot, err := device.Granted(buf)
	must(t, err)
	p, err := device.NewPayload(sends, slot)
	must(t, err)
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	must(t, shm.SendFDs(c, device.Memory(), p.Object().FD()))
	q, err := cq.Create(cq.Unnamed("unread"), cq.Options{Size: 1024, MaxLanes: 4,
		Trust: cq.CrossUser})
	must(t, err)
	t.Cleanup(func() { must(t, q.Close()) })
	for range 2 {
		must(t, q.Accept(ctx, c))
	}
	w, err := cq.Attach(ctx, cq.Over(c), cq.WriterOptions{Trust: cq.CrossUser})
	must(t, err)
	t.Cleanup(func() { must(t, w.Close()) })
	_, _, err = shm.RecvFDs(c, buf, 0) // ready
	must(t, err)
	must(t, shm.SendFDs(c, device.Start()))
	return c
}

// TestLateDrop: a port that was dropped by one application and taken by another one stays with the
// later owner, in whichever order the engine learns of it.
func TestLateDrop(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	if first, second, arrives := device.LateDrop(5000); first || !second || !arrives {
		t.Errorf("sends from it: first %t, second %t; packets arrive: %t", first, second, arrives)
	}
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

// TestStrangers: who is not on the allow-list is refused as often as he comes, and cannot fill the
// log with that.
func TestStrangers(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, device.Config{Allow: []device.Allow{{ID: 1<<31 - 7}}})
	const n = 200
	begin := time.Now()
	for range n {
		c := r.raw()
		ends(t, "a stranger", c)
		_ = c.Close()
	}
	await(t, "all refusals", func() bool { return r.server.Stats().Refused == n })
	r.mu.Lock()
	defer r.mu.Unlock()
	// Eight in the first second, and in each window of two seconds and more one and what it left out.
	most := 8 + 2*(1+int(time.Since(begin)/(2*time.Second)))
	if got := len(r.errs); got == 0 || got > most {
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
	must(t, e.SendTo([]byte("x"), to, 1))
	next(t, e)
	must(t, r.server.Unreadable(5001))
	must(t, e.SendTo([]byte("x"), to, 2))
	if ev := <-events; ev.Err == nil || errors.Is(ev.Err, io.EOF) {
		t.Errorf("thrown out: %+v", ev)
	}
	await(t, "the report", func() bool { return r.reported() != nil })
	t.Run("closed", func(t *testing.T) {
		r := newRig(t, device.Config{})
		var err error
		e, err = device.Dial(t.Context(), r.path, request)
		must(t, err)
	})
	defer func() { must(t, e.Close()) }()
	if ev := <-events; !errors.Is(ev.Err, device.ErrClosing) ||
		!errors.Is(ev.Err, syscall.ESHUTDOWN) {
		t.Errorf("closed: %+v", ev)
	}
}
