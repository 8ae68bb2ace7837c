package udp_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/netif"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp/device"
	"github.com/shmring/shmring/xdp/udp"
)

// serve runs a device process's server on an end, at path, until stop is called.
func serve(t *testing.T, e *veth.End, path string) (stop func()) {
	t.Helper()
	var table *netif.Table
	var s *device.Server
	err := e.Do(func() (err error) {
		if table, err = netif.OpenTable(e.Index, netif.TableOptions{}); err != nil {
			return err
		}
		s, err = device.NewServer(t.Context(), device.Config{Interface: e.Name, Resolver: table})
		return err
	})
	shmtest.Require(t, "xdp", err)
	l, err := device.Listen(path)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l.UnixListener) }()
	return func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		must(t, errors.Join(s.Close(), l.Close(), table.Close()))
	}
}

func socketPath(t *testing.T) string {
	dir, err := os.MkdirTemp("", "udp")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// TestParityDevice compares with kernel sockets where a device process has the interface.
func TestParityDevice(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	path := socketPath(t)
	defer serve(t, p.B, path)()
	s, err := udp.OpenDevice(t.Context(), path, device.Request{Name: "parity"}, udp.StackOptions{})
	must(t, err)
	defer s.Close()
	kernel := kernelHosts{p}
	runParity(t, kernel, mixed{kernel, 1, s})
	taken := listen(t, s, p.B.Addr, 7)
	other, err := udp.OpenDevice(t.Context(), path, device.Request{}, udp.StackOptions{})
	must(t, err)
	defer other.Close()
	var op *net.OpError
	_, err = other.Listen(addrPort(taken))
	if !errors.Is(err, syscall.EADDRINUSE) || !errors.As(err, &op) {
		t.Errorf("a port of another application: %v", err)
	}
}

// TestWriteThenClose: what was written before Close leaves all the same.
func TestWriteThenClose(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	path := socketPath(t)
	defer serve(t, p.B, path)()
	s, err := udp.OpenDevice(t.Context(), path, device.Request{}, udp.StackOptions{})
	must(t, err)
	defer s.Close()
	k := kernelHosts{p}.listen(t, 0, netip.AddrPortFrom(p.A.Addr, 0))
	defer k.Close()
	must(t, k.SetDeadline(time.Now().Add(long)))
	for range 10 {
		c := listen(t, s, p.B.Addr, 7)
		for range 20 {
			_, err := c.WriteTo([]byte("last words"), k.LocalAddr())
			must(t, err)
		}
		must(t, c.Close())
		for range 20 {
			_, _, err := k.ReadFrom(make([]byte, 32))
			must(t, err)
		}
	}
}

// TestDeviceComesBack: a connection outlives the device process.
func TestDeviceComesBack(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	path := socketPath(t)
	stop := serve(t, p.B, path)
	s, err := udp.OpenDevice(t.Context(), path, device.Request{}, udp.StackOptions{})
	must(t, err)
	defer s.Close()
	c := listen(t, s, p.B.Addr, 7)
	go func() { // until it is closed
		buf := make([]byte, 100)
		for {
			n, from, err := c.ReadFrom(buf)
			if err == nil {
				_, err = c.WriteTo(buf[:n], from)
			}
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
				return
			}
		}
	}()
	k := kernelHosts{p}.listen(t, 0, netip.AddrPortFrom(p.A.Addr, 0))
	defer k.Close()
	echo := func() bool {
		_, err := k.WriteTo([]byte("there"), c.LocalAddr())
		must(t, err)
		must(t, k.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		_, _, err = k.ReadFrom(make([]byte, 100))
		return err == nil
	}
	await(t, echo)
	for range 2 {
		stop()
		// Nobody is there, and a write is as one on a wire that is cut.
		_, err := c.WriteTo([]byte("void"), k.LocalAddr())
		must(t, err)
		stop = serve(t, p.B, path)
		await(t, echo)
	}
	stop()
}
