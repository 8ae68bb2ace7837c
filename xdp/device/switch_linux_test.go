package device

import (
	"errors"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// linked returns a session of an endpoint, and the server's end of its connection.
func linked(t *testing.T) (*session, *net.UnixConn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	at := &net.UnixAddr{Name: path, Net: "unixpacket"}
	l, err := net.ListenUnix("unixpacket", at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.DialUnix("unixpacket", nil, at)
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(c.Close(), server.Close()) })
	return newSession(c), server
}

// TestDropWhileSwitching: a port that is dropped while the endpoint talks to the next server, which
// was asked for it already, is not taken there.
func TestDropWhileSwitching(t *testing.T) {
	t.Parallel()
	e := &Endpoint{ports: []uint16{5000, 5001}}
	s, _ := linked(t)
	s.ports = e.takenPorts()
	e.forgetPort(5001)
	if err := e.switchTo(s); !errors.Is(err, ErrBusy) || e.sess != nil {
		t.Errorf("%v, %v", err, e.sess)
	}
	s, _ = linked(t)
	s.ports = e.takenPorts()
	if err := e.switchTo(s); err != nil || e.sess != s {
		t.Error(err)
	}
}

// TestTakenBeforeTold: a port that the server gave is asked for at the next one, also if this one
// dies before whoever asked has heard of it.
func TestTakenBeforeTold(t *testing.T) {
	t.Parallel()
	e := &Endpoint{ports: []uint16{5000}, ctx: t.Context()}
	s, server := linked(t)
	asked, listened := make(chan error, 1), make(chan error, 1)
	go func() { listened <- e.listen(s) }()
	go func() { asked <- e.question(s, stepTake, 5001) }()
	w := meet(t.Context(), server)
	h, err := w.next()
	if err != nil || h.step != stepTake || !slices.Equal(h.ports, []uint16{5001}) {
		t.Fatal(h, err)
	}
	if err := errors.Join(w.send(hello{step: stepDone}), server.Close()); err != nil {
		t.Fatal(err)
	}
	select { // from here on the next server may be talked to
	case <-listened:
	case <-time.After(time.Minute):
		t.Fatal("the end was not noticed")
	}
	if got := e.takenPorts(); !slices.Equal(got, []uint16{5000, 5001}) {
		t.Errorf("%v", got)
	}
	if err := <-asked; err != nil {
		t.Error(err)
	}
	// A no takes nothing, nor does it leave the question open.
	s, server = linked(t)
	go func() { listened <- e.listen(s) }()
	go func() { asked <- e.question(s, stepTake, 5002) }()
	w = meet(t.Context(), server)
	if _, err := w.next(); err != nil {
		t.Fatal(err)
	}
	no := refusal(stepDone, ErrPortTaken)
	if err := w.send(no); err != nil {
		t.Fatal(err)
	}
	if err := <-asked; !errors.Is(err, ErrPortTaken) {
		t.Error(err)
	}
	_ = server.Close()
	<-listened
	if got := e.takenPorts(); !slices.Equal(got, []uint16{5000, 5001}) || s.wanted != 0 {
		t.Errorf("%v, %d", got, s.wanted)
	}
}
