package xdp_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

func attached(t testing.TB, e *veth.End) xdp.ProgramInfo {
	t.Helper()
	var info xdp.ProgramInfo
	xdptest.Do(t, e, func() (err error) {
		info, err = xdp.AttachedProgram(e.Name)
		return err
	})
	return info
}

// TestProgramLifetime: the program is on the interface as long as somebody holds it, whatever
// sockets come and go.
func TestProgramLifetime(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{Queues: 3})
	if info := attached(t, pair.B); info.ID != 0 {
		t.Fatalf("at first: %v", info)
	}
	for range 3 {
		prog := xdptest.Attach(t, pair.B, xdp.ProgramOptions{})
		want := prog.Info()
		if want.ID == 0 {
			t.Fatal(want)
		}
		var group sync.WaitGroup
		errs := make(chan error, 3)
		for q := range uint32(3) {
			group.Go(func() {
				for range 4 {
					errs <- pair.B.Do(func() error {
						return tryOpen(pair.B.Name, q, xdp.Options{BusyTimeout: patience}, prog)
					})
				}
			})
		}
		for range 12 {
			must(t, <-errs)
			if info := attached(t, pair.B); info != want {
				t.Fatalf("while sockets come and go: %v, want %v", info, want)
			}
		}
		group.Wait()
		must(t, prog.Close())
		// A process that is being started has a copy of the link until it runs its own program.
		await(t, "program detached", func() bool { return attached(t, pair.B).ID == 0 })
	}
	_, err := xdp.AttachedProgram("nosuchif0")
	clear(t, err, "ip link", xdp.ErrNoDevice, syscall.ENODEV)
}

// TestDetachedByOthers: somebody detaches our link, as "bpftool link detach" does. Traffic goes to
// the stack, and the program can still be closed.
func TestDetachedByOthers(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, xdp.AttachAuto, xdp.UMEMOptions{}, xdp.Options{})
	must(t, detach(r.prog.Info().ID))
	if info := attached(t, r.pair.B); info.ID != 0 {
		t.Errorf("still attached: %v", info)
	}
	stack := udp(t, r.pair.B, testPort)
	r.sendTo(t, testPort, 1)
	buf := make([]byte, 10)
	if n, err := stack.Read(buf); err != nil || n != 4 {
		t.Errorf("%d bytes, %v", n, err)
	}
	if _, err := r.prog.Counters(); err != nil {
		t.Error(err)
	}
	must(t, r.prog.Close())
	xdptest.Attach(t, r.pair.B, xdp.ProgramOptions{})
}

// detach detaches the link of a program of this process, whose number the kernel tells beside the
// descriptor. A walk over all links would hold each of them for a moment, and so keep the program
// of a test beside this one attached after that has closed it.
func detach(program uint32) error {
	fds, err := filepath.Glob("/proc/self/fdinfo/*")
	for _, path := range fds {
		info, _ := os.ReadFile(path)
		_, info, ok := bytes.Cut(info, []byte("\nlink_id:"))
		var id uint32
		if !ok || !bytes.Contains(info, fmt.Appendf(nil, "\nprog_id:\t%d\n", program)) {
			continue
		}
		if _, err := fmt.Sscan(string(info), &id); err != nil {
			return err
		}
		l, err := link.NewFromID(link.ID(id))
		if err != nil {
			return err
		}
		defer l.Close()
		return l.Detach()
	}
	return errors.Join(fmt.Errorf("no link of program %d", program), err)
}

// noBPFFSChild attaches a program where no BPF filesystem is mounted.
func noBPFFSChild() {
	runtime.LockOSThread()
	need(errors.Join(unix.Unshare(unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")))
	for unix.Unmount("/sys/fs/bpf", unix.MNT_DETACH) == nil { // until it is not mounted any more
	}
	need(veth.Enter(3))
	p := shmtest.Needs(xdp.Attach(os.Getenv("IFNAME"), xdp.ProgramOptions{}))
	_, err := p.AddRule(xdp.Rule{All: true}, xdp.Target{})
	need(errors.Join(err, p.Close()))
}

func TestNoBPFFilesystemNeeded(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{})
	must(t, inNamespace(t, "no-bpffs", pair.B).Run())
}

// hold binds queue 0, sends packets, attaches the program if it is to, says so, and waits to be
// killed.
func hold(packets int, program bool) {
	runtime.LockOSThread()
	need(veth.Enter(3))
	u := shmtest.Needs(xdp.NewUMEM(xdp.UMEMOptions{Frames: 64}))
	s := shmtest.Needs(xdp.Open(context.Background(), os.Getenv("IFNAME"), 0, u, xdp.Options{}))
	for n := range packets {
		f, buf, _ := s.Acquire()
		xskPacket(buf[:1000], n, 0)
		need(s.Post(f, 1000, 0))
	}
	s.Flush()
	shmtest.Needs(s.Kick())
	if program {
		shmtest.Needs(xdp.Attach(os.Getenv("IFNAME"), xdp.ProgramOptions{}))
	}
	shmtest.Say("ready")
	shmtest.UntilTold()
}

// held starts a child in the role, which says that it has its queue.
func held(t testing.TB, role string, e *veth.End) *shmtest.Proc {
	t.Helper()
	c := shmtest.Start(t, inNamespace(t, role, e))
	c.Says(t, "ready")
	return c
}

// TestBindAfterKillInTransit: a packet of a killed process that is still on its way holds the queue
// for as long as it is, here for a second in front of a slow device. Nobody has to say so: a bind
// waits for it.
func TestBindAfterKillInTransit(t *testing.T) {
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{})
	const upper = "above"
	shmtest.Require(t, "xdp", pair.B.Do(func() error {
		lower, err := netlink.LinkByName(pair.B.Name)
		if err != nil {
			return err
		}
		// Two of the packets are more than it lets through at once, and then it takes a second each.
		slow := &netlink.Tbf{Rate: 1000, Limit: 1 << 16, Buffer: netlink.Xmittime(1000, 1500),
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: lower.Attrs().Index,
				Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}}
		if err := netlink.QdiscAdd(slow); err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex = upper, lower.Attrs().Index
		l := &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_PRIVATE}
		if err := netlink.LinkAdd(l); err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	}))
	end := *pair.B
	end.Name = upper
	held(t, "send-and-hold", &end).Kill()
	began := time.Now()
	xdptest.Do(t, pair.B, func() error { return tryOpen(upper, 0, xdp.Options{}) })
	t.Logf("bound after %v", time.Since(began))
}

var bindKills = flag.Int("bind.kills", 5, "kill so many processes that have a queue")

// TestBindAfterKill: whoever binds right after SIGKILL, before the killed one has ended, gets the
// queue, however little time the machine has.
func TestBindAfterKill(t *testing.T) {
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{})
	var idle atomic.Bool
	defer idle.Store(true)
	for range runtime.GOMAXPROCS(0) {
		go func() {
			for !idle.Load() { // no system call: where it returns the runtime cannot take the processor
			}
		}()
	}
	for range *bindKills {
		c := held(t, "hold-only", pair.B)
		must(t, c.Process.Kill())
		xdptest.Do(t, pair.B, func() error { return tryOpen(pair.B.Name, 0, xdp.Options{}) })
		c.Kill()
	}
}

// TestBindObeysContext: a wait for a queue ends with its context.
func TestBindObeysContext(t *testing.T) {
	r := newRig(t, xdp.AttachAuto, xdp.UMEMOptions{}, xdp.Options{})
	u := xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 16})
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	err := r.pair.B.Do(func() error {
		s, err := xdp.Open(ctx, r.pair.B.Name, 0, u, xdp.Options{BusyTimeout: time.Hour})
		if err == nil {
			return s.Close()
		}
		return err
	})
	if !errors.Is(err, why) || !errors.Is(err, xdp.ErrQueueBusy) || !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
}

// TestQueueHolder: the kernel names who has a queue, or says that it does not know.
func TestQueueHolder(t *testing.T) {
	t.Parallel()
	b := newRig(t, xdp.AttachAuto, xdp.UMEMOptions{}, xdp.Options{}).pair.B
	for queue, want := range []int{os.Getpid(), 0} {
		var pid int
		err := b.Do(func() (err error) {
			pid, err = xdp.QueueHolder(b.Index, uint32(queue))
			return err
		})
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
			t.Logf("a kernel without CONFIG_XDP_SOCKETS_DIAG: %v", err)
		case err != nil || pid != want:
			t.Errorf("queue %d is held by %d, want %d: %v", queue, pid, want, err)
		}
	}
}

// TestXskTeardown (TEARDOWN): ten times made, used and closed, on the same queue.
func TestXskTeardown(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{})
	prog := attachProgram(t, pair.B, xdp.AttachNative, false, byQueue)
	for range 10 {
		open := func(e *veth.End) *xdp.Socket {
			return xdptest.Open(t, e, 0, xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 256}),
				xdp.Options{BusyTimeout: patience})
		}
		x := &xsk{tx: open(pair.A), rx: open(pair.B)}
		prog.put(t, 0, x.rx)
		x.stream(t, x.tx, x.rx, 200, always(64))
		x.finish(t)
		for _, s := range []*xdp.Socket{x.tx, x.rx} {
			must(t, s.Close())
			must(t, s.UMEM().Close(t.Context()))
		}
	}
}

// TestXskProgramMaps: nothing that the steering program had in the kernel outlives it.
func TestXskProgramMaps(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{})
	for range 3 {
		var maps []ebpf.MapID
		func() { // constants of the program stay mapped while anything refers to it
			var p *xdp.Program
			xdptest.Do(t, pair.B, func() (err error) {
				p, err = xdp.Attach(pair.B.Name, xdp.ProgramOptions{})
				return err
			})
			maps = mapsOn(t, pair.B)
			must(t, p.Close())
		}()
		for _, id := range maps {
			await(t, "the end of a map", func() bool {
				m, err := ebpf.NewMapFromID(id)
				if err == nil {
					m.Close()
					runtime.GC()
				}
				return errors.Is(err, os.ErrNotExist)
			})
		}
	}
}

// mapsOn lists the maps of the program on an end.
func mapsOn(t testing.TB, e *veth.End) []ebpf.MapID {
	t.Helper()
	var id ebpf.ProgramID
	xdptest.Do(t, e, func() error {
		l, err := netlink.LinkByName(e.Name)
		if err == nil {
			id = ebpf.ProgramID(l.Attrs().Xdp.ProgId)
		}
		return err
	})
	p := shmtest.Got(ebpf.NewProgramFromID(id)).Or(t)
	defer p.Close()
	info := shmtest.Got(p.Info()).Or(t)
	maps, ok := info.MapIDs()
	if !ok || len(maps) == 0 {
		t.Fatalf("program %d has no maps", id)
	}
	return maps
}

// TestXskHeldByMapping: a descriptor that is closed while a ring is mapped keeps the queue, which
// is why Close unmaps; after it the queue is free within the time that Open waits by default.
func TestXskHeldByMapping(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{})
	u := xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 64})
	s := xdptest.Open(t, pair.B, 0, u, xdp.Options{})
	ring := shmtest.Got(unix.Mmap(s.FD(), unix.XDP_PGOFF_RX_RING, os.Getpagesize(),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)).Or(t)
	must(t, s.Close())
	err := pair.B.Do(func() error {
		return tryOpen(pair.B.Name, 0, xdp.Options{BusyTimeout: 50 * time.Millisecond})
	})
	if !errors.Is(err, xdp.ErrQueueBusy) {
		t.Errorf("with a mapping left: %v", err)
	}
	must(t, unix.Munmap(ring))
	xdptest.Do(t, pair.B, func() error { return tryOpen(pair.B.Name, 0, xdp.Options{}) })
}

// TestXskBusyGivesUp: Open tries for as long as it is told while the queue is bound, and no longer.
func TestXskBusyGivesUp(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, xdp.AttachAuto, xdp.UMEMOptions{}, xdp.Options{})
	const wait = 60 * time.Millisecond
	start := time.Now()
	err := r.pair.B.Do(func() error {
		return tryOpen(r.pair.B.Name, 0, xdp.Options{BusyTimeout: wait})
	})
	clear(t, err, "ss --xdp", xdp.ErrQueueBusy, syscall.EBUSY)
	if d := time.Since(start); d < wait {
		t.Errorf("gave up after %v", d)
	}
}

// TestXskClosed: calls of a closed socket say so or do nothing.
func TestXskClosed(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, xskConfig{}, func(t *testing.T, x *xsk) {
		s := x.tx
		f, _, ok := s.Acquire()
		must(t, s.Close())
		must(t, s.Close())
		_, kick := s.Kick()
		_, stats := s.KernelStats()
		for name, err := range map[string]error{"kick": kick, "check": s.Check(), "stats": stats} {
			if !errors.Is(err, os.ErrClosed) {
				t.Errorf("%s: %v", name, err)
			}
		}
		must(t, s.WakeFill())
		if _, _, again := s.Acquire(); !ok || again {
			t.Error("frames of a closed socket")
		}
		s.Drop(f)
		if n := s.Receive(x.got[:]) + s.Fill(8) + s.Reap(x.sent[:]) + s.Unsent(); n != 0 {
			t.Errorf("a closed socket moved %d", n)
		}
		if f := s.FrameStats(); f.Sum() != f.Frames {
			t.Errorf("%+v", f)
		}
	})
}

// TestXskChunks: chunks that no kernel takes are refused before it is asked, and those that it
// takes work.
func TestXskChunks(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for _, bytes := range []uint32{1024, 2047, 3000, 4001, 6144} {
		_, err := xdp.NewUMEM(xdp.UMEMOptions{Frames: 64, ChunkBytes: bytes})
		clear(t, err, "possible", xdp.ErrOptions, syscall.EINVAL)
	}
	for _, bytes := range []uint32{2048, 4096} {
		u := xdp.UMEMOptions{Frames: 64, ChunkBytes: bytes, HeadroomBytes: 256}
		x := newXsk(t, xdp.AttachGeneric, xskConfig{txUMEM: u, rxUMEM: u})
		x.stream(t, x.tx, x.rx, 100, always(1400))
		x.finish(t)
	}
}

// passedChild is an unprivileged process: it takes over a socket that it was given, and sends back
// what it receives.
func passedChild() {
	runtime.LockOSThread()
	need(veth.Enter(3))
	need(errors.Join(syscall.Setgroups(nil), syscall.Setgid(65534), syscall.Setuid(65534)))
	own := tryOpen(os.Getenv("IFNAME"), 0, xdp.Options{})
	device := unix.SetsockoptString(4, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "lo")
	u := shmtest.Needs(xdp.NewUMEM(xdp.UMEMOptions{Frames: 256}))
	s, err := xdp.Open(context.Background(), os.Getenv("IFNAME"), 0, u, xdp.Options{SocketFD: 4})
	need(err)
	fmt.Println("ready", errors.Is(own, xdp.ErrNoCapability), errors.Is(device, unix.EPERM))
	var got [8]xdp.Received
	var done [8]xdp.Sent
	for {
		for _, r := range got[:s.Receive(got[:])] {
			s.Forward(r, 0)
		}
		s.Flush()
		shmtest.Needs(s.Kick())
		s.Reap(done[:])
		s.Fill(8)
		time.Sleep(100 * time.Microsecond)
	}
}

// TestXskPassed: a privileged process makes the socket, binds it to a device and puts it into the
// map of a program; a process without any privilege then registers memory of its own, binds,
// receives and sends. It can make no socket itself, nor take this one to another device.
func TestXskPassed(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{})
	prog := attachProgram(t, pair.B, xdp.AttachNative, false, byQueue)
	back := attachProgram(t, pair.A, xdp.AttachNative, false, byQueue)
	x := &xsk{tx: xdptest.Open(t, pair.A, 0, xdptest.NewUMEM(t, xdp.UMEMOptions{}), xdp.Options{})}
	back.put(t, 0, x.tx)
	var fd int
	xdptest.Do(t, pair.B, func() (err error) {
		if fd, err = unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, pair.B.Name)
	})
	must(t, prog.xsks.Put(uint32(0), uint32(fd)))
	file := os.NewFile(uintptr(fd), "socket")
	c := shmtest.Start(t, inNamespace(t, "passed-socket", pair.B, file))
	defer c.Kill()
	must(t, file.Close())
	c.Says(t, "ready true true")
	x.stream(t, x.tx, x.tx, 200, always(64))
}

// TestXskLyingBuilder: whoever builds a packet and says that it is longer than the frame, or
// shorter than a header, or of another frame, gets an error and keeps the frame; nothing leaks.
func TestXskLyingBuilder(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, xskConfig{}, func(t *testing.T, x *xsk) {
		before := x.tx.FrameStats()
		f, buf, _ := x.tx.Acquire()
		for _, n := range []int{-1, 0, 13, len(buf) + 1, 1 << 40} {
			if err := x.tx.Post(f, n, 0); !errors.Is(err, xdp.ErrTooBig) ||
				!errors.Is(err, syscall.EMSGSIZE) {
				t.Errorf("%d bytes: %v", n, err)
			}
		}
		for _, g := range []uint32{f + 1, 0, 1 << 30} {
			if err := x.tx.Post(g, 60, 0); !errors.Is(err, xdp.ErrFrame) {
				t.Errorf("frame %d: %v", g, err)
			}
		}
		if x.tx.Flush() || x.tx.Unsent() != 0 || xdp.Sending(x.tx) != 0 {
			t.Error("something was sent")
		}
		abandoned, after := x.tx.Drop(f), x.tx.FrameStats()
		if before.Illegal = after.Illegal; !abandoned || after != before {
			t.Errorf("%+v, want %+v", after, before)
		}
		x.stream(t, x.tx, x.rx, 10, always(64))
	})
}
