package xdp_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

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
