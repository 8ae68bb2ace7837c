package device_test

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp/device"
)

// TestRefusals: what the allow-list does not grant is refused with a reason that is a number and a
// text, and takes nothing.
func TestRefusals(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	uid := uint32(os.Geteuid())
	r := newRig(t, device.Config{Allow: []device.Allow{
		{ID: uid, First: 5000, Last: 5010, Frames: 64, Sends: 16, Rules: 2, Apps: 2}}})
	first := r.dial(device.Request{Ports: []uint16{5000}, Frames: 32, Sends: 8})
	for name, c := range map[string]struct {
		q   device.Request
		err error
		num syscall.Errno
	}{
		"port out of range": {device.Request{Ports: []uint16{4999}}, device.ErrRefused,
			syscall.EACCES},
		"port taken": {device.Request{Ports: []uint16{5001, 5000}}, device.ErrPortTaken,
			syscall.EADDRINUSE},
		"port twice": {device.Request{Ports: []uint16{5001, 5001}}, device.ErrPortTaken,
			syscall.EADDRINUSE},
		"rules":  {device.Request{Ports: []uint16{5001, 5002}}, device.ErrBudget, syscall.EDQUOT},
		"frames": {device.Request{Frames: 33}, device.ErrBudget, syscall.EDQUOT},
		"sends":  {device.Request{Sends: 9}, device.ErrBudget, syscall.EDQUOT},
	} {
		_, err := device.Dial(t.Context(), r.path, c.q)
		var no *device.RefusedError
		if !errors.Is(err, c.err) || !errors.Is(err, c.num) || !errors.As(err, &no) || no.Text == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	// All of what is left can be had, so nothing of it was lost; and no more than two connections.
	second := r.dial(device.Request{Ports: []uint16{5001}, Frames: 32, Sends: 8})
	if _, err := device.Dial(t.Context(), r.path, device.Request{}); !errors.Is(err,
		device.ErrBudget) {
		t.Errorf("third application: %v", err)
	}
	must(t, second.Close())
	await(t, "the end of the second", func() bool { return r.server.Places() == 1 })
	must(t, first.Take(t.Context(), 5001))
	if err := first.Take(t.Context(), 5002); !errors.Is(err, device.ErrBudget) {
		t.Errorf("third port: %v", err)
	}
	must(t, first.Drop(t.Context(), 5001))
	if err := first.Drop(t.Context(), 5001); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("port dropped twice: %v", err)
	}
	must(t, first.Take(t.Context(), 5002))
}

// TestStranger: a user who is not on the list gets nothing but a no.
func TestStranger(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, device.Config{Allow: []device.Allow{{ID: uint32(os.Geteuid()) + 1}}})
	if _, err := device.Dial(t.Context(), r.path, device.Request{}); !errors.Is(err,
		device.ErrRefused) {
		t.Error(err)
	}
	await(t, "the report", func() bool { return errors.Is(r.reported(), device.ErrRefused) })
}

// TestSendRefusals: what is wrong with a send comes back with its context.
func TestSendRefusals(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	e := r.dial(device.Request{Ports: []uint16{5000}, Sends: 4})
	to := addrOf(r.peer(6000))
	if err := e.SendTo(make([]byte, e.Info().MaxPayload+1), to, 1); !errors.Is(err, syscall.EMSGSIZE) {
		t.Error(err)
	}
	must(t, e.SendFrom([]byte("x"), 5001, to, 2))
	if c := nextError(t, e); c.Context != 2 || !errors.Is(&c, syscall.EACCES) {
		t.Errorf("from a port of nobody's: %+v", c)
	}
	for want, bad := range map[syscall.Errno]string{syscall.EHOSTUNREACH: "198.51.100.1:9",
		syscall.EINVAL: "192.0.2.1:0"} {
		must(t, e.SendTo([]byte("x"), addrPort(bad), 3))
		if c := nextError(t, e); c.Context != 3 || !errors.Is(&c, want) {
			t.Errorf("to %s: %+v", bad, c)
		}
	}
	// Sends that wait for an address keep their slots, and others wait for none of them.
	for range 3 {
		must(t, e.SendTo([]byte("x"), addrPort(silent.String()+":9"), 4))
	}
	for range 20 {
		must(t, e.SendTo(make([]byte, e.Info().MaxPayload), to, 5))
		if c := next(t, e); c.Context != 5 {
			t.Fatalf("%+v", c)
		}
	}
	must(t, e.SendTo([]byte("x"), addrPort(silent.String()+":9"), 4))
	if err := e.SendTo([]byte("x"), to, 5); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("a fifth send: %v", err)
	}
	r.server.SetParked(100 * time.Millisecond)
	e = r.dial(device.Request{Ports: []uint16{5002}, Sends: 4})
	for range 4 {
		must(t, e.SendTo([]byte("x"), addrPort(silent.String()+":9"), 4))
	}
	for range 4 {
		if c := nextError(t, e); c.Context != 4 || !errors.Is(&c, syscall.EHOSTUNREACH) {
			t.Errorf("never resolved: %+v", c)
		}
	}
	must(t, e.InjectTo([]byte("x"), addrPort("198.51.100.1:9")))
	if c := nextError(t, e); !errors.Is(&c, syscall.EHOSTUNREACH) {
		t.Errorf("inject: %+v", c)
	}
	for range 20 {
		await(t, "a slot", func() bool { return e.InjectTo([]byte("x"), to) == nil })
	}
}
