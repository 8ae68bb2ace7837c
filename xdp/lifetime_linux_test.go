package xdp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

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
					errs <- pair.B.Do(func() error { return openAndClose(pair.B.Name, q, prog) })
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
		if info := attached(t, pair.B); info.ID != 0 {
			t.Fatalf("in the end: %v", info)
		}
	}
	_, err := xdp.AttachedProgram("nosuchif0")
	clear(t, err, "ip link", xdp.ErrNoDevice, syscall.ENODEV)
}

func openAndClose(ifname string, queue uint32, prog *xdp.Program) error {
	u, err := xdp.NewUMEM(xdp.UMEMOptions{Frames: 16})
	if err != nil {
		return err
	}
	defer u.Close(context.Background())
	s, err := xdp.Open(context.Background(), ifname, queue, u, xdp.Options{BusyTimeout: patience})
	if err != nil {
		return err
	}
	return errors.Join(s.Register(prog, 0), s.Close())
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
	err := errors.Join(unix.Unshare(unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	for err == nil {
		if e := unix.Unmount("/sys/fs/bpf", unix.MNT_DETACH); e != nil {
			break // it is not mounted any more
		}
	}
	if err == nil {
		err = veth.Enter(3)
	}
	var p *xdp.Program
	if err == nil {
		p, err = xdp.Attach(os.Getenv("IFNAME"), xdp.ProgramOptions{})
	}
	if err == nil {
		_, err = p.AddRule(xdp.Rule{All: true}, xdp.Target{})
	}
	if err == nil {
		err = p.Close()
	}
	fmt.Print(err)
}

func TestNoBPFFilesystemNeeded(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{})
	out, err := inNamespace(t, "no-bpffs", pair.B).Output()
	shmtest.Require(t, "children", err)
	if string(out) != "<nil>" {
		t.Errorf("%s", out)
	}
}

// holdAfter binds queue 0, sends packets, says so, and waits to be killed.
func holdAfter(packets int) {
	runtime.LockOSThread()
	err := veth.Enter(3)
	var u *xdp.UMEM
	if err == nil {
		u, err = xdp.NewUMEM(xdp.UMEMOptions{Frames: 64})
	}
	var s *xdp.Socket
	if err == nil {
		s, err = xdp.Open(context.Background(), os.Getenv("IFNAME"), 0, u, xdp.Options{})
	}
	for n := 0; n < packets && err == nil; n++ {
		f, buf, _ := s.Acquire()
		xskPacket(buf[:1000], n, 0)
		err = s.Post(f, 1000, 0)
	}
	if err == nil {
		s.Flush()
		_, err = s.Kick()
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// held starts a child in the role, which says that it has its queue.
func held(t testing.TB, role string, e *veth.End) *exec.Cmd {
	t.Helper()
	cmd := inNamespace(t, role, e)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = in.Close() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("child: %q, %v", line, err)
	}
	return cmd
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
	cmd := held(t, "send-and-hold", &end)
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
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
		cmd := held(t, "hold-only", pair.B)
		must(t, cmd.Process.Kill())
		xdptest.Do(t, pair.B, func() error { return tryOpen(pair.B.Name, 0, xdp.Options{}) })
		_ = cmd.Wait()
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
