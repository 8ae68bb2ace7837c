package device_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/netif"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

// raw connects to a server without saying anything.
func (r *rig) raw() *net.UnixConn {
	r.t.Helper()
	c := shmtest.Have(net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: r.path,
		Net: "unixpacket"})).In(r.t)
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

// ends waits until the server hangs up, whatever it says before.
func ends(t testing.TB, what string, c *net.UnixConn) {
	t.Helper()
	for {
		_, fds, err := shm.RecvFDs(c, make([]byte, 512), 4)
		shm.CloseFDs(fds)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%s: the server did not hang up", what)
		}
		if err != nil {
			return
		}
	}
}

// bystander is an application whose traffic must not suffer.
func bystander(r *rig) *ledger {
	peer := r.peer(6000)
	echo(peer)
	return newLedger(r.t, r.dial(device.Request{Name: "bystander", Ports: []uint16{5000}}),
		addrOf(peer))
}

// goesOn checks that a bystander sends and receives.
func (l *ledger) goesOn() {
	l.t.Helper()
	before := l.echoes
	await(l.t, "traffic of the bystander", func() bool {
		_ = l.post(4)
		l.drain()
		return l.echoes > before+50
	})
	l.settle()
	if l.lost != 0 {
		l.t.Fatalf("the bystander lost %d sends", l.lost)
	}
}

// TestHostileMessages: descriptors where none belong, memory that is none, and silence end the
// connection and nothing else. What else a message may be see TestHostileConversation of
// internal/place.
func TestHostileMessages(t *testing.T) {
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	l := bystander(r)
	good := device.Hello()
	r1, w1, err := os.Pipe()
	shmtest.Have(r1, err).In(t)
	shmtest.Have(w1, nil).In(t)
	c := r.raw()
	must(t, shm.SendFDs(c, good, int(r1.Fd()), int(w1.Fd())))
	ends(t, "descriptors", c)
	for name, memory := range badMemory(t, int(r1.Fd())) {
		c, sends, slot := r.greeted()
		must(t, shm.SendFDs(c, device.Memory(), memory(sends, slot)...))
		ends(t, name, c)
	}
	r.server.SetHelloTimeout(500 * time.Millisecond)
	silent := r.raw()
	l.goesOn()
	ends(t, "silence", silent)
	l.goesOn()
	await(t, "the end of all others", func() bool { return len(r.server.Stats().Apps) == 1 })
	if err := r.reported(); err == nil {
		t.Error("nothing was reported")
	}
}

// badMemory makes descriptors that are no payload memory.
func badMemory(t testing.TB, pipe int) map[string]func(sends, slot int) []int {
	memfd := func(size int, seals int) []int {
		fd := shmtest.Got(unix.MemfdCreate("bad", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)).Or(t)
		t.Cleanup(func() { _ = unix.Close(fd) })
		must(t, unix.Ftruncate(fd, int64(size)))
		shmtest.Got(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)).Or(t)
		return []int{fd}
	}
	const all = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL | unix.F_SEAL_FUTURE_WRITE
	return map[string]func(sends, slot int) []int{
		"no memory": func(int, int) []int { return nil },
		"a pipe":    func(int, int) []int { return []int{pipe} },
		"two":       func(int, int) []int { return []int{pipe, pipe} },
		"unsealed":  func(n, s int) []int { return memfd(n*s+4096, unix.F_SEAL_SHRINK) },
		"sparse":    func(n, s int) []int { return memfd(n*s+4096, all) },
		"gigantic":  func(n, s int) []int { return memfd(1<<40, all) },
		"small": func(n, s int) []int {
			p := shmtest.Got(device.NewPayload(n-1, s)).Or(t)
			t.Cleanup(func() { _ = p.Close(t.Context()) })
			return []int{p.Object().FD()}
		},
	}
}

// TestHostileCommands: an application that submits nonsense gets errors, or loses its place; it
// gets at no frame that is not its own, and nobody else notices.
func TestHostileCommands(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for name, inPlace := range map[string]bool{"copies": false, "in place": true} {
		t.Run(name, func(t *testing.T) { hostileCommands(t, inPlace) })
	}
}

func hostileCommands(t *testing.T, inPlace bool) {
	r := newRig(t, device.Config{})
	l := bystander(r)
	e := r.dial(device.Request{Name: "hostile", Ports: []uint16{5001}, Frames: 32, Sends: 16,
		InPlace: inPlace})
	victim := r.dial(device.Request{Name: "victim", Ports: []uint16{5002}, Frames: 32})
	peer := r.peer(6001)
	for range 32 { // the victim has all of its frames
		if _, err := peer.WriteToUDPAddrPort([]byte("keep"), r.target(5002)); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "frames of the victim", func() bool { return victim.Stats().Received == 32 })
	umem, payload := e.Regions()
	theirs, _ := victim.Regions()
	rnd := rand.New(rand.NewPCG(3, 5))
	regions := []uint16{umem, payload, theirs, 0, 0xffff}
	flags := []cq.Flags{cq.FlagFrame, cq.FlagSend | cq.FlagMsg,
		cq.FlagSend | cq.FlagMsg | cq.FlagInject, 0, ^cq.Flags(0), cq.FlagRecv}
	offsets := []uint64{0, 1, 2048, 63 * 2048, 1 << 20, 1<<48 - 1}
	for range 20000 {
		c := cq.Entry{Context: rnd.Uint64(), Flags: flags[rnd.IntN(len(flags))],
			Len:  rnd.Uint64() >> rnd.IntN(64),
			Buf:  shm.MakeRef(regions[rnd.IntN(len(regions))], offsets[rnd.IntN(len(offsets))]),
			Data: rnd.Uint64() >> rnd.IntN(64), Tag: rnd.Uint64() >> rnd.IntN(64),
			Src: cq.From(cq.Addr(rnd.Uint64() >> rnd.IntN(64)))}
		if rnd.IntN(2) == 0 { // as right as it can be but for one thing
			c.Src = cq.From(cq.Addr(rnd.IntN(1<<16)) | 5001<<16)
		}
		await(t, "room", func() bool {
			drop(t, e)
			err := e.Submit(c)
			if err != nil && !errors.Is(err, cq.ErrFull) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	l.goesOn()
	if s := victim.Stats(); s.Returned != 0 || s.Stale != 0 {
		t.Errorf("the victim: %+v", s)
	}
	await(t, "the stale returns", func() bool { drop(t, e); return e.Stats().Stale > 1000 })
	for _, a := range r.server.Stats().Apps {
		if a.Name == "hostile" && (a.Loaned != 0 || a.UnderWay > 16) {
			t.Errorf("%+v", a)
		}
	}
	await(t, "the last send", func() bool { drop(t, e); return r.server.Stats().SendsInUse == 0 })
	if sum, all := frameSum(r.server.Stats()); sum != all {
		t.Errorf("%d of %d frames", sum, all)
	}
	// It can do what it is there for, as if nothing had been.
	if _, err := peer.WriteToUDPAddrPort([]byte("still"), r.target(5001)); err != nil {
		t.Fatal(err)
	}
	entry := next(t, e)
	if got := text(t, e, &entry); got != "still" {
		t.Errorf("got %q", got)
	}
	l.goesOn()
	// An error entry is no command at all: that is the end of it.
	must(t, r.reported())
}

// drop takes what comes to an endpoint and looks at none of it.
func drop(t testing.TB, e *device.Endpoint) {
	t.Helper()
	var es [64]cq.Entry
	for {
		n, err := cq.Read(e.Queue(), es[:])
		if errors.Is(err, cq.ErrAvail) {
			var x cq.ErrorEntry
			must(t, e.Queue().ReadErr(&x))
			continue
		}
		if n == 0 {
			return
		}
	}
}

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
		if !errors.Is(err, c.err) || !errors.Is(err, c.num) ||
			!strings.Contains(err.Error(), "device process says: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	nobody := device.Request{Events: (*cq.EventQueue)(nil)}
	if _, err := device.Dial(t.Context(), r.path, nobody); !errors.Is(err, device.ErrOptions) {
		t.Errorf("events that are nil: %v", err)
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

// TestSendRefusals: what is wrong with a send comes back with its context.
func TestSendRefusals(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	e := r.dial(device.Request{Ports: []uint16{5000}, Sends: 4})
	to := addrOf(r.peer(6000))
	big := make([]byte, e.Info().MaxPayload+1)
	if err := e.SendTo(big, 0, to, 1); !errors.Is(err, syscall.EMSGSIZE) {
		t.Error(err)
	}
	must(t, e.SendTo([]byte("x"), 5001, to, 2))
	if c := nextError(t, e); c.Context != 2 || !errors.Is(&c, syscall.EACCES) {
		t.Errorf("from a port of nobody's: %+v", c)
	}
	for want, bad := range map[syscall.Errno]string{syscall.EHOSTUNREACH: "198.51.100.1:9",
		syscall.EINVAL: "192.0.2.1:0"} {
		must(t, e.SendTo([]byte("x"), 0, addrPort(bad), 3))
		if c := nextError(t, e); c.Context != 3 || !errors.Is(&c, want) {
			t.Errorf("to %s: %+v", bad, c)
		}
	}
	// Sends that wait for an address keep their slots, and others wait for none of them.
	for range 3 {
		must(t, e.SendTo([]byte("x"), 0, addrPort(silent.String()+":9"), 4))
	}
	for range 20 {
		must(t, e.SendTo(make([]byte, e.Info().MaxPayload), 0, to, 5))
		if c := next(t, e); c.Context != 5 {
			t.Fatalf("%+v", c)
		}
	}
	must(t, e.SendTo([]byte("x"), 0, addrPort(silent.String()+":9"), 4))
	if err := e.SendTo([]byte("x"), 0, to, 5); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("a fifth send: %v", err)
	}
	r.server.SetParked(100 * time.Millisecond)
	e = r.dial(device.Request{Ports: []uint16{5002}, Sends: 4})
	for range 4 {
		must(t, e.SendTo([]byte("x"), 0, addrPort(silent.String()+":9"), 4))
	}
	for range 4 {
		if c := nextError(t, e); c.Context != 4 || !errors.Is(&c, syscall.EHOSTUNREACH) {
			t.Errorf("never resolved: %+v", c)
		}
	}
	must(t, e.InjectTo([]byte("x"), 0, addrPort("198.51.100.1:9")))
	if c := nextError(t, e); !errors.Is(&c, syscall.EHOSTUNREACH) {
		t.Errorf("inject: %+v", c)
	}
	for range 20 {
		await(t, "a slot", func() bool { return e.InjectTo([]byte("x"), 0, to) == nil })
	}
}

// TestSilentPeers: connections of one user that say nothing do not keep another user out, and keep
// one of their own waiting for no longer than they last.
func TestSilentPeers(t *testing.T) {
	shmtest.Conforms(t)
	r := newRig(t, device.Config{MaxApps: 8, Allow: bothUsers()})
	var mute []*net.UnixConn
	for range 40 {
		mute = append(mute, r.raw())
	}
	must(t, shm.SendFDs(mute[0], device.Hello())) // half of it
	await(t, "the refusal of most", func() bool { return r.server.Stats().Refused >= 32 })
	p := r.app(5001) // of the other user
	dialled := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		e, err := device.Dial(ctx, r.path, device.Request{})
		if err == nil {
			err = e.Close()
		}
		dialled <- err
	}()
	for _, c := range mute {
		_ = c.Close()
	}
	must(t, <-dialled)
	p.Stop(t)
	await(t, "the end of all", func() bool { return len(r.server.Stats().Apps) == 0 })
	if err := r.reported(); !errors.Is(err, device.ErrBusy) {
		t.Errorf("%v", err)
	}
}

// TestLaneMemory: the memory that an application makes the server take for its queues counts, and
// is given back.
func TestLaneMemory(t *testing.T) {
	shmtest.Conforms(t)
	r := newRig(t, device.Config{Allow: []device.Allow{{ID: 0, MemoryMiB: 1}}})
	large := device.Request{QueueOptions: cq.Options{Size: 1 << 13}}
	for range 3 {
		if e, err := device.Dial(t.Context(), r.path, large); err == nil {
			must(t, e.Close())
			t.Fatal("two lanes of more than half of the memory")
		} else if !errors.Is(err, device.ErrBudget) && !errors.Is(err, shm.ErrNoSpace) {
			t.Error(err)
		}
		e := shmtest.Got(device.Dial(t.Context(), r.path, device.Request{})).Or(t)
		must(t, e.Close())
		await(t, "the end of it", func() bool { return len(r.server.Stats().Apps) == 0 })
	}
	if err := r.reported(); !errors.Is(err, device.ErrBudget) {
		t.Errorf("%v", err)
	}
	await(t, "the memory", func() bool { return r.server.LaneBytes() == 0 })
}

// openTable opens the table of an end for the time of the test.
func openTable(t testing.TB, e *veth.End) *netif.Table {
	t.Helper()
	return xdptest.Have(e, func() (*netif.Table, error) {
		return netif.OpenTable(e.Index, netif.TableOptions{})
	}).In(t)
}

// laterTable is a table that is opened when the interface is there.
type laterTable struct{ atomic.Pointer[netif.Table] }

func (l *laterTable) Lookup(dst netip.Addr) (xdp.Hop, error) { return l.Load().Lookup(dst) }
func (l *laterTable) Forget(dst netip.Addr)                  { l.Load().Forget(dst) }

// TestSpray: an application that sends to ever more addresses behind a gateway is served, and has
// the table remember no more of them than its line of the allow-list may.
func TestSpray(t *testing.T) {
	shmtest.Conforms(t)
	resolver := &laterTable{}
	r := newRig(t, device.Config{Resolver: resolver,
		Allow: []device.Allow{{ID: 0, Destinations: 8}}})
	xdptest.Do(t, r.pair.B, func() error {
		return netlink.RouteAdd(&netlink.Route{LinkIndex: r.pair.B.Index,
			Gw: r.pair.A.Addr.AsSlice()})
	})
	table := openTable(t, r.pair.B)
	resolver.Store(table)
	e := r.dial(device.Request{Ports: []uint16{5000}, Sends: 32})
	const n = 300
	ended := 0
	take := func() {
		var es [32]cq.Entry
		k, err := cq.Read(e.Queue(), es[:])
		if errors.Is(err, cq.ErrAvail) {
			c := nextError(t, e)
			t.Fatalf("%+v", c)
		}
		ended += k
	}
	for i := range n {
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 9)
		await(t, "a slot", func() bool {
			take()
			err := e.SendTo([]byte("x"), 0, to, uint64(i))
			return err == nil
		})
	}
	await(t, "all ends", func() bool { take(); return ended == n })
	if s := table.Stats(); s.Destinations > 8 || s.RouteQuestions < n {
		t.Errorf("%+v", s)
	}
}

// TestUnreadablePayload: an application whose memory cannot be read while a packet is built of it
// is hung up on, and the packet's frame is free again.
func TestUnreadablePayload(t *testing.T) {
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	l := bystander(r)
	e := r.dial(device.Request{Ports: []uint16{5001}, NoReconnect: true})
	to := addrOf(r.peer(6001))
	must(t, e.SendTo([]byte("x"), 0, to, 1))
	next(t, e)
	must(t, r.server.Unreadable(5001))
	must(t, e.SendTo([]byte("x"), 0, to, 2))
	if c := nextError(t, e); c.Context != 2 {
		t.Errorf("%+v", c)
	}
	must(t, e.Close())
	l.goesOn()
	await(t, "the frames and rows", func() bool {
		s := r.server.Stats()
		sum, all := frameSum(s)
		return s.SendsInUse == 0 && sum == all && !sending(s)
	})
	if r.reported() == nil {
		t.Error("nothing was reported")
	}
}

// sending reports whether a frame is being filled to be sent, or is.
func sending(s device.Stats) bool {
	for _, f := range s.Frames {
		if f.Build+f.Send > 0 {
			return true
		}
	}
	return false
}
