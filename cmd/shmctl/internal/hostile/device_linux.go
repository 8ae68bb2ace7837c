package hostile

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

// Ports of a device scene: what the bystander has, what attackers may take, and where answers come
// from.
const (
	honestPort   = 5000
	newcomerPort = 5001
	hostilePort  = 5100
	echoPort     = 6000
)

// prepareDevice makes a network of two ends, B and A, and has somebody at A answer.
func prepareDevice(sc *scene) (done func(), skip error) {
	pair, err := veth.Open(veth.Config{})
	if err != nil {
		return nil, err
	}
	var echo *net.UDPConn
	err = pair.A.Do(func() error {
		echo, err = net.ListenUDP("udp4", &net.UDPAddr{IP: pair.A.Addr.AsSlice(), Port: echoPort})
		return err
	})
	if err != nil {
		_ = pair.Close()
		return nil, err
	}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := echo.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = echo.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	sc.files = []*os.File{pair.B.NetNS(), pair.A.NetNS()}
	for _, e := range []*veth.End{pair.B, pair.A} {
		sc.ends = append(sc.ends, e.Name, e.MAC.String(), e.Addr.String())
	}
	return func() { _ = errors.Join(echo.Close(), pair.Close()) }, nil
}

// wires resolves what is at the other end.
type wires struct{ local, remote veth.End }

func (w wires) Lookup(dst netip.Addr) (xdp.Hop, error) {
	if dst != w.remote.Addr {
		return xdp.Hop{}, packet.ErrUnreachable
	}
	return xdp.Hop{LocalMAC: [6]byte(w.local.MAC), NextMAC: [6]byte(w.remote.MAC),
		Source: w.local.Addr, MTU: 1500, Generation: 1}, nil
}

func (c *child) wires(i int) wires {
	end := func(i int) (e veth.End) {
		e.Name = c.Ends[3*i]
		e.MAC, _ = net.ParseMAC(c.Ends[3*i+1])
		e.Addr = netip.MustParseAddr(c.Ends[3*i+2])
		return e
	}
	return wires{end(i), end(1 - i)}
}

// openServer makes a server for one end.
func (c *child) openServer(i int) (*device.Server, *device.Listener, error) {
	w := c.wires(i)
	runtime.LockOSThread()
	if err := veth.Enter(3 + i); err != nil {
		return nil, nil, err
	}
	var allow []device.Allow
	for _, text := range []string{fmt.Sprintf("uid:%d,ports=%d-%d", honestUID, honestPort, honestPort),
		fmt.Sprintf("uid:%d,ports=%d-%d", newcomerUID, newcomerPort, newcomerPort),
		fmt.Sprintf("uid:%d,ports=%d-%d,frames=512,sends=128,apps=12", attackerUID, hostilePort,
			hostilePort+99)} {
		a, err := device.ParseAllow(text)
		if err != nil {
			return nil, nil, err
		}
		allow = append(allow, a)
	}
	s, err := device.NewServer(context.Background(), device.Config{
		Interface: w.local.Name, Allow: allow, Resolver: w,
		NoObject: true, Frames: 2048, Spin: -1, Report: func(err error) { c.refusedBy("serve", err) }})
	if err != nil {
		return nil, nil, err
	}
	l, err := device.Listen(c.path(fmt.Sprintf(deviceSocket, i)))
	if err == nil {
		err = os.Chmod(c.path(fmt.Sprintf(deviceSocket, i)), 0o666)
	}
	return s, l, err
}

// victimServer is a device process.
func victimServer(c *child) error {
	s, l, err := c.openServer(0)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l.UnixListener) }()
	time.Sleep(5 * time.Millisecond)
	before := held()
	c.ready()
	shown, computed, stalled := s.Stats(), processCPU(), c.stallNs.Load()
	look := func() {
		over := c.watch("a look at the server")
		st := s.Stats()
		over()
		rounds, polls := st.Rounds-shown.Rounds, st.Polls-shown.Polls
		if c.counts[calls].Add(rounds); polls > rounds+1 {
			c.broken(unbounded, "%d rounds of the server slept %d times", rounds, polls)
		}
		// Its rounds are run by a goroutine of the library: all that the process computes until the
		// next one is shown is what one costs at most.
		now := processCPU()
		cost := now - computed
		c.most(cpuMostNs, uint64(cost))
		late := cost-time.Duration(c.stallNs.Load()-stalled) > 2*cpuBound
		if late {
			c.broken(unbounded, "a round of the server computes for %v", cost)
		}
		if late || rounds > 0 {
			computed, stalled = now, c.stallNs.Load()
		}
		shown = st
		for _, f := range st.Frames {
			if f.Sum() != f.Frames {
				c.broken(unbounded, "%d of %d frames are known of", f.Sum(), f.Frames)
			}
		}
		if err := s.Err(); err != nil {
			c.broken(hung, "the server has failed: %v", err)
		}
		time.Sleep(2 * time.Millisecond)
	}
	for c.ctx.Err() == nil {
		look()
	}
	c.settles(before, nil, look)
	if st := s.Stats(); len(st.Apps) != 0 || st.Admitted != st.Evicted {
		c.broken(leaked, "%d applications are still there", len(st.Apps))
	}
	cancel()
	over := c.watch("the end of Serve")
	if err := <-served; !errors.Is(err, context.Canceled) {
		return fmt.Errorf("serve: %w", err)
	}
	over()
	defer c.watch("close of the server")()
	return errors.Join(s.Close(), l.Close())
}
