package netif

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/xdp"
)

const nobody = 65534

// TestUnprivileged: without CAP_NET_ADMIN the table knows what the kernel knows, and says that it
// may not ask for more.
func TestUnprivileged(t *testing.T) {
	p := forgetful(t)
	cmd := shmtest.Child(t, "unprivileged", "IFINDEX="+strconv.Itoa(p.A.Index),
		"DST="+p.B.Addr.String())
	cmd.ExtraFiles = []*os.File{p.A.NetNS(), p.B.NetNS()}
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
	called := func() error { return errors.New("called") }
	if err := InNamespace(4, called); !errors.Is(err, ErrNamespace) || !errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("not allowed into the other namespace: %w", err)
	}
	if err := InNamespace(3, called); err == nil || err.Error() != "called" {
		return fmt.Errorf("in this namespace already: %w", err)
	}
	index, err := strconv.Atoi(os.Getenv("IFINDEX"))
	if err != nil {
		return err
	}
	table, err := OpenTable(index, TableOptions{})
	if err != nil {
		return err
	}
	defer table.Close()
	deadline := time.Now().Add(hang)
	resolve := func(dst netip.Addr) (hop xdp.Hop, err error) {
		for err = packet.ErrResolving; err == packet.ErrResolving; time.Sleep(time.Millisecond) {
			if hop, err = table.Lookup(dst); time.Now().After(deadline) {
				return hop, fmt.Errorf("never: %w", err)
			}
		}
		return hop, err
	}
	dst := netip.MustParseAddr(os.Getenv("DST"))
	_, err = resolve(dst)
	if !errors.Is(err, ErrNotAllowed) || !errors.Is(err, syscall.EPERM) ||
		!errors.Is(err, packet.ErrUnreachable) {
		return fmt.Errorf("not known, and not allowed to ask: %w", err)
	}
	hop, err := resolve(netip.AddrFrom4([4]byte{255, 255, 255, 255}))
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
		if time.Now().After(deadline) {
			return fmt.Errorf("known now: %+v, %w", hop, err)
		}
		time.Sleep(time.Millisecond)
	}
}
