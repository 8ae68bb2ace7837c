package route

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
)

const nobody = 65534

// TestUnprivileged: without CAP_NET_ADMIN the table knows what the kernel knows, and says that it
// may not ask for more.
func TestUnprivileged(t *testing.T) {
	p := forgetful(t)
	cmd := shmtest.Child(t, "unprivileged", "IFNAME="+p.A.Name, "DST="+p.B.Addr.String())
	cmd.ExtraFiles = []*os.File{p.A.NetNS()}
	out, err := cmd.Output()
	if err != nil || string(out) != "done\n" {
		t.Errorf("child: %q, %v", out, err)
	}
}

func unprivilegedChild() {
	if err := unprivileged(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("done")
}

func unprivileged() error {
	runtime.LockOSThread()
	if err := veth.Enter(3); err != nil {
		return err
	}
	if err := syscall.Setuid(nobody); err != nil {
		return err
	}
	table, err := Open(os.Getenv("IFNAME"), Options{})
	if err != nil {
		return err
	}
	defer table.Close()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	dst := netip.MustParseAddr(os.Getenv("DST"))
	_, err = table.Resolve(ctx, dst)
	if !errors.Is(err, ErrNotAllowed) || !errors.Is(err, syscall.EPERM) ||
		!errors.Is(err, packet.ErrUnreachable) {
		return fmt.Errorf("not known, and not allowed to ask: %w", err)
	}
	hop, err := table.Resolve(ctx, netip.AddrFrom4([4]byte{255, 255, 255, 255}))
	if err != nil || !hop.Source.IsValid() {
		return fmt.Errorf("broadcast: %+v, %w", hop, err)
	}
	// Somebody else makes the kernel find out.
	ping := &syscall.SockaddrInet4{Port: 9, Addr: dst.As4()}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	if err := syscall.Sendto(fd, []byte("x"), 0, ping); err != nil {
		return err
	}
	for {
		hop, err := table.Lookup(dst)
		if err == nil && hop.NextMAC != [6]byte{} {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("known now: %+v, %w", hop, err)
		}
		time.Sleep(time.Millisecond)
	}
}
