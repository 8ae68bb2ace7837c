package veth

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Open makes two namespaces and joins them: addresses and permanent neighbours are set, IPv6 is
// off, and both ends run. It needs CAP_SYS_ADMIN and CAP_NET_ADMIN.
func Open(c Config) (*Pair, error) {
	c = c.resolve()
	p := &Pair{A: &End{Name: c.NameA, Addr: netip.AddrFrom4([4]byte{192, 0, 2, 1})},
		B: &End{Name: c.NameB, Addr: netip.AddrFrom4([4]byte{192, 0, 2, 2})}}
	if err := p.open(c); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("veth: %w", err)
	}
	return p, nil
}

func (p *Pair) open(c Config) error {
	for _, e := range []*End{p.A, p.B} {
		ns, err := newNamespace()
		if err != nil {
			return fmt.Errorf("new network namespace: %w", err)
		}
		e.ns = ns
		if err := e.Do(quiet); err != nil {
			return err
		}
	}
	if err := p.A.Do(func() error { return p.link(c) }); err != nil {
		return fmt.Errorf("join %q and %q: %w", c.NameA, c.NameB, err)
	}
	for _, e := range []*End{p.A, p.B} {
		if err := e.Do(e.configure); err != nil {
			return fmt.Errorf("configure %q: %w", e.Name, err)
		}
	}
	for _, e := range []*End{p.A, p.B} {
		peer := p.A
		if e == p.A {
			peer = p.B
		}
		if err := e.Do(func() error { return e.settle(peer) }); err != nil {
			return fmt.Errorf("configure %q: %w", e.Name, err)
		}
	}
	return nil
}

// link makes the pair in the namespace of the calling thread, which is A's.
func (p *Pair) link(c Config) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = c.NameA, c.MTU
	attrs.NumTxQueues, attrs.NumRxQueues = c.Queues, c.Queues
	v := netlink.NewVeth(attrs)
	v.PeerName, v.PeerMTU = c.NameB, uint32(c.MTU)
	v.PeerNumTxQueues, v.PeerNumRxQueues = uint32(c.Queues), uint32(c.Queues)
	v.PeerNamespace = netlink.NsFd(p.B.ns.Fd())
	return netlink.LinkAdd(v)
}

// quiet keeps neighbour discovery from sending frames of its own. Not being allowed to is no
// reason to fail: what it sends goes to the kernel's stack anyway.
func quiet() error {
	for _, which := range []string{"all", "default"} {
		name := "/proc/sys/net/ipv6/conf/" + which + "/disable_ipv6"
		err := os.WriteFile(name, []byte("1"), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) &&
			!errors.Is(err, unix.EROFS) {
			return err
		}
	}
	return nil
}

func (e *End) configure() error {
	l, err := netlink.LinkByName(e.Name)
	if err != nil {
		return err
	}
	e.Index, e.MAC = l.Attrs().Index, l.Attrs().HardwareAddr
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: e.Addr.AsSlice(), Mask: net.CIDRMask(24, 32)}}
	if err := netlink.AddrAdd(l, addr); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// settle makes the peer known and waits until frames will not be lost any more.
func (e *End) settle(peer *End) error {
	// A worker of the kernel says so, which has to get a processor first.
	const wait, pause = time.Minute, 2 * time.Millisecond
	err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: e.Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
		IP: peer.Addr.AsSlice(), HardwareAddr: peer.MAC,
	})
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(wait); ; time.Sleep(pause) {
		l, err := netlink.LinkByName(e.Name)
		if err != nil {
			return err
		}
		if l.Attrs().RawFlags&unix.IFF_RUNNING != 0 && l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not running after %v", wait)
		}
	}
}

// onThread runs f on an operating system thread that ends with it, so that f may change what
// belongs to a thread.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is thrown away
		if unix.Gettid() == unix.Getpid() {
			// The runtime cannot throw the process's first thread away: it would stay as f left it,
			// in a namespace that then lives as long as the process. Held here, it is not f's.
			err := onThread(f)
			runtime.UnlockOSThread()
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func newNamespace() (ns *os.File, err error) {
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return ns, err
}

// Do runs f in the namespace of the end, on a thread of its own. Sockets that f makes keep the
// namespace; goroutines that it starts do not have it. Do not call t.Fatal or the like in f, and
// do not start processes in it that shall die with their parent: the parent is the thread.
func (e *End) Do(f func() error) error {
	return onThread(func() error {
		if err := Enter(int(e.ns.Fd())); err != nil {
			return err
		}
		return f()
	})
}

// Enter moves the calling thread to a network namespace. Lock the goroutine to its thread first.
func Enter(fd int) error {
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("veth: enter network namespace: %w", err)
	}
	return nil
}

// SetUp brings the end up or down.
func (e *End) SetUp(up bool) error {
	return e.Change(func(l netlink.Link) error {
		if up {
			return netlink.LinkSetUp(l)
		}
		return netlink.LinkSetDown(l)
	})
}

// Remove removes the end, and with it the other one.
func (e *End) Remove() error { return e.Change(netlink.LinkDel) }

// Change has f change the end, in its namespace.
func (e *End) Change(f func(netlink.Link) error) error {
	return e.Do(func() error {
		l, err := netlink.LinkByName(e.Name)
		if err == nil {
			err = f(l)
		}
		if err != nil {
			return fmt.Errorf("veth: change %q: %w", e.Name, err)
		}
		return nil
	})
}
