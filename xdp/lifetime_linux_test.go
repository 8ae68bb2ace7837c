package xdp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/cilium/ebpf/link"
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
