package device_test

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/device"
)

// raw connects to a server without saying anything.
func (r *rig) raw() *net.UnixConn {
	r.t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: r.path, Net: "unixpacket"})
	must(r.t, err)
	r.t.Cleanup(func() { _ = c.Close() })
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
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := peer.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = peer.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
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
	must(t, err)
	defer r1.Close()
	defer w1.Close()
	c := r.raw()
	must(t, shm.SendFDs(c, good, int(r1.Fd()), int(w1.Fd())))
	ends(t, "descriptors", c)
	for name, memory := range badMemory(t, int(r1.Fd())) {
		c := r.raw()
		must(t, shm.SendFDs(c, good))
		buf := make([]byte, 256)
		_, fds, err := shm.RecvFDs(c, buf, 2)
		must(t, err)
		shm.CloseFDs(fds)
		sends, slot, err := device.Granted(buf)
		must(t, err)
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
		fd, err := unix.MemfdCreate("bad", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		must(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		must(t, unix.Ftruncate(fd, int64(size)))
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		must(t, err)
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
			p, err := device.NewPayload(n-1, s)
			must(t, err)
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
