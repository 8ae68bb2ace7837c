package device_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp/device"
)

// lent is how many frames a server has lent in place, of its own.
func lent(s *device.Server) uint64 {
	var n uint64
	for _, f := range s.Stats().Frames {
		n += f.Loaned
	}
	return n
}

// whole checks that every frame of a server has one owner.
func (r *rig) whole() {
	r.t.Helper()
	if sum, all := frameSum(r.server.Stats()); sum != all {
		r.t.Errorf("%d of %d frames", sum, all)
	}
	must(r.t, r.reported())
}

func write(t testing.TB, peer *net.UDPConn, r *rig, port uint16, text string) {
	t.Helper()
	shmtest.Got(peer.WriteToUDPAddrPort([]byte(text), r.target(port))).Or(t)
}

// TestInPlaceBounded: who reads in place and gives nothing back has what it was granted, and
// another application gets its packets all the same, in memory of its own.
func TestInPlaceBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, device.Config{Frames: 128})
	e := r.dial(device.Request{Ports: []uint16{5000}, Frames: 64, InPlace: true})
	other := r.dial(device.Request{Ports: []uint16{5001}, Frames: 16})
	peer := r.peer(6000)
	for i := range 200 { // more than all frames
		write(t, peer, r, 5000, fmt.Sprint("held ", i))
		write(t, peer, r, 5001, fmt.Sprint("other ", i))
		entry := next(t, other)
		if got := text(t, other, &entry); got != fmt.Sprint("other ", i) {
			t.Fatalf("got %q", got)
		}
	}
	await(t, "all packets", func() bool { return e.Stats().Received+e.Stats().NoFrame == 200 })
	if s := e.Stats(); s.Received != 64 || lent(r.server) != 64 {
		t.Errorf("%d lent, %+v", lent(r.server), s)
	}
	for i := range 64 {
		entry := next(t, e)
		if got := text(t, e, &entry); got != fmt.Sprint("held ", i) {
			t.Fatalf("got %q", got)
		}
	}
	await(t, "the returns", func() bool { return lent(r.server) == 0 })
	write(t, peer, r, 5000, "again")
	entry := next(t, e)
	if got := text(t, e, &entry); got != "again" {
		t.Errorf("got %q", got)
	}
	r.whole()
}

// TestInPlaceReturns: a return ends the loan that it names. One that comes twice, of another
// generation, of another memory or of no frame is counted and changes nothing.
func TestInPlaceReturns(t *testing.T) {
	t.Parallel()
	r := newRig(t, device.Config{Frames: 128})
	e := r.dial(device.Request{Ports: []uint16{5000}, InPlace: true})
	peer := r.peer(6000)
	write(t, peer, r, 5000, "first")
	first := next(t, e)
	for _, change := range []func(*cq.Entry){
		func(c *cq.Entry) { c.Data++ },
		func(c *cq.Entry) { c.Data |= 1 << 32 },
		func(c *cq.Entry) { c.Buf += 2048 },
		func(c *cq.Entry) { c.Buf += 1 << 40 },
		func(c *cq.Entry) { c.Buf ^= 1 << 63 },
	} {
		c := device.ReturnOf(&first)
		change(&c)
		must(t, e.Submit(c))
	}
	await(t, "the wrong returns", func() bool { return e.Stats().Stale == 5 })
	if lent(r.server) != 1 {
		t.Errorf("%d frames are lent", lent(r.server))
	}
	text(t, e, &first)
	must(t, e.Release(first))
	await(t, "the second return", func() bool { return e.Stats().Stale == 6 })
	if s := e.Stats(); s.Returned != 1 || lent(r.server) != 0 {
		t.Errorf("%d frames are lent, %+v", lent(r.server), s)
	}
	r.whole()
}

// TestInPlaceKilled: of a process that is killed with frames in its hands, unread ones too, all are
// back, and the next one may read in place.
func TestInPlaceKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t, device.Config{Frames: 128})
	peer := r.peer(6000)
	for range 3 {
		cmd := shmtest.Child(t, "device-app", "PATH_OF="+r.path, "PORT=5000", "HOLD=1", "IN_PLACE=1")
		p := start(t, cmd)
		_, err := device.Dial(t.Context(), r.path, device.Request{InPlace: true})
		if !errors.Is(err, device.ErrBudget) {
			t.Fatalf("a second process: %v", err)
		}
		for i := range 20 {
			write(t, peer, r, 5000, fmt.Sprint("lost ", i))
		}
		await(t, "packets", func() bool { return lent(r.server) == 20 })
		p.Kill()
		await(t, "the end of the process", func() bool { return len(r.server.Stats().Apps) == 0 })
		if n := lent(r.server); n != 0 {
			t.Fatalf("%d frames are lent", n)
		}
	}
	e := r.dial(device.Request{Ports: []uint16{5000}, InPlace: true})
	write(t, peer, r, 5000, "mine")
	entry := next(t, e)
	if got := text(t, e, &entry); got != "mine" {
		t.Errorf("got %q", got)
	}
	sum, all := frameSum(r.server.Stats())
	if sum != all {
		t.Errorf("%d of %d frames", sum, all)
	}
}

// TestInPlaceRefused: another user may not read in place, nor may anybody at a server with several
// queues, and nobody gets more than the kernel can do without.
func TestInPlaceRefused(t *testing.T) {
	t.Parallel()
	dial := func(r *rig, frames int) error {
		e, err := device.Dial(t.Context(), r.path, device.Request{Frames: frames, InPlace: true})
		if err == nil {
			err = e.Close()
		}
		return err
	}
	r := newRig(t, device.Config{Frames: 128, Allow: bothUsers()})
	if err := dial(r, 65); !errors.Is(err, device.ErrBudget) {
		t.Errorf("more than half of the frames: %v", err)
	}
	must(t, dial(r, 64))
	cmd := appCommand(t, "device-app", r.path, 5001, "IN_PLACE=1")
	cmd.Stderr = nil
	said, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "own user") {
		t.Errorf("another user: %v, %s", err, said)
	}
	r = newRig(t, device.Config{Frames: 128, Queues: []uint32{0, 1}})
	if err := dial(r, 0); !errors.Is(err, device.ErrRefused) {
		t.Errorf("two queues: %v", err)
	}
}

// TestInPlaceThrownOut: what a server that lives on had lent before it hung up can be read, and
// names no loan of another session: there is none.
func TestInPlaceThrownOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, device.Config{Frames: 128})
	gone := make(chan device.Event, 1)
	e := r.dial(device.Request{Ports: []uint16{5000}, InPlace: true,
		Notify: func(ev device.Event) { gone <- ev }})
	peer := r.peer(6000)
	write(t, peer, r, 5000, "held")
	entry := next(t, e)
	must(t, r.server.Unreadable(5000))
	must(t, e.SendTo([]byte("x"), 0, addrOf(peer), 1))
	if ev := <-gone; ev.Err == nil {
		t.Fatalf("%+v", ev)
	}
	await(t, "the end of the search", func() bool {
		err := e.SendTo([]byte("x"), 0, addrOf(peer), 2)
		return errors.Is(err, device.ErrServerGone) && strings.Contains(err.Error(), "lives on")
	})
	if got := text(t, e, &entry); got != "held" {
		t.Errorf("got %q", got)
	}
	if s := e.Stats(); s.Former != 1 || s.Released != 0 {
		t.Errorf("%+v", s)
	}
	if r.reported() == nil {
		t.Error("no report")
	}
}
