package udp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/netif"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

// opener makes a stack and all that is below it, and undoes it.
type opener struct {
	ctx      context.Context
	o        Options
	ifi      *net.Interface
	ns       *os.File // the network namespace that the interface is in
	program  *xdp.Program
	undo     []func() error // the last one first
	backends []backend
}

// Open runs UDP on an interface of the calling thread's network namespace: it attaches the steering
// program, opens a socket and an endpoint on each queue, and follows the kernel's routes. Nothing
// but the ports of connections is taken from the kernel.
//
// It needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF. Errors are those of [xdp.Attach], [xdp.NewUMEM]
// and [xdp.Open], and those of reading the kernel's routes and neighbours. After an error nothing
// is left. The context bounds Open alone.
func Open(ctx context.Context, ifname string, o Options) (*Stack, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := &opener{ctx: ctx, o: o}
	s, err := p.open(ifname)
	if err != nil {
		for _, b := range p.backends {
			_ = b.Close()
		}
		p.undoTo(0)
		return nil, err
	}
	return s, nil
}

// undoTo undoes what was made since there was so much to be undone.
func (p *opener) undoTo(n int) {
	for _, f := range slices.Backward(p.undo[n:]) {
		_ = f()
	}
	p.undo = p.undo[:n]
}

func (p *opener) open(ifname string) (*Stack, error) {
	fail := func(err error) (*Stack, error) {
		return nil, &shm.Error{Pkg: pkg, Op: "open", Name: ifname, Err: err}
	}
	var err error
	if p.ifi, err = net.InterfaceByName(ifname); err != nil {
		return fail(fmt.Errorf("%w: %w", xdp.ErrNoDevice, err))
	}
	if len(p.ifi.HardwareAddr) != 6 {
		return fail(fmt.Errorf("%w: it is no Ethernet interface", ErrOptions))
	}
	if p.ns, err = netif.OpenNamespace(); err != nil {
		return fail(err)
	}
	p.defers(p.ns.Close)
	if err := p.attach(); err != nil {
		return nil, err
	}
	if err := p.resolver(); err != nil {
		return nil, err
	}
	if err := p.openQueues(); err != nil {
		return nil, err
	}
	o := p.o.StackOptions
	o.bind, o.Zone = p.bind, p.ifi.Name
	s, err := newStack(o, p.backends...)
	if err != nil {
		return nil, err
	}
	slices.Reverse(p.undo)
	s.onClose = p.undo
	p.backends, p.undo = nil, nil // the stack's
	if err := p.watch(s); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// defers has f called after everything that was made later is undone.
func (p *opener) defers(f func() error) { p.undo = append(p.undo, f) }

func (p *opener) attach() (err error) {
	if p.program = p.o.Program; p.program != nil {
		return nil
	}
	if p.program, err = xdp.Attach(p.ifi.Name, p.o.Attach); err != nil {
		return err
	}
	p.defers(p.program.Close)
	return nil
}

// openQueues opens those that were asked for, or all that there are.
func (p *opener) openQueues() error {
	for i := 0; len(p.o.Queues) == 0 || i < len(p.o.Queues); i++ {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		q, all := uint32(i), len(p.o.Queues) == 0
		if !all {
			q = p.o.Queues[i]
		}
		err := p.openQueue(q)
		if all && i > 0 && errors.Is(err, xdp.ErrNoQueue) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *opener) openQueue(queue uint32) (err error) {
	name := p.ifi.Name + "/" + strconv.Itoa(int(queue))
	before := len(p.undo)
	defer func() {
		if err != nil {
			p.undoTo(before)
		}
	}()
	u := p.o.UMEM
	if u.ChunkBytes == 0 && p.ifi.MTU > maxSmallMTU {
		u.ChunkBytes = 4096
	}
	umem, err := xdp.NewUMEM(u)
	if err != nil {
		return err
	}
	p.defers(func() error { return umem.Close(context.Background()) })
	q, err := cq.Create(cq.Unnamed(name), cq.Options{Wait: cq.WaitNone,
		Size: int(umem.Geometry().Frames)})
	if err != nil {
		return err
	}
	p.defers(q.Close)
	w, err := q.Writer()
	if err != nil {
		return err
	}
	p.defers(w.Close)
	socket, err := xdp.Open(p.ctx, p.ifi.Name, queue, umem, p.o.Socket)
	if err != nil {
		return err
	}
	e, err := endpoint.Open(endpoint.Config{Socket: socket, Receive: w,
		LocalMAC: [6]byte(p.ifi.HardwareAddr), Resolver: p.o.Resolver, HopLimit: p.o.HopLimit,
		TrafficClass: p.o.TrafficClass, WrongChecksums: p.o.WrongChecksums})
	if err != nil {
		p.defers(socket.Close)
		return err
	}
	if err = socket.Register(p.program, p.o.Slot); err != nil {
		p.defers(e.Close)
		return err
	}
	b, err := newOnEndpoint(e, q)
	if err != nil {
		p.defers(e.Close)
		return err
	}
	b.resolver = p.o.Resolver
	if n := p.o.Socket.SendFrames; n > 0 {
		b.limit = int(umem.Geometry().Frames-n) * 2 / 3
	}
	p.backends = append(p.backends, b)
	return nil
}

// maxSmallMTU is the longest IP packet, with a VLAN tag, for a chunk of 2048 bytes.
const maxSmallMTU = 2048 - xdp.RecordBytes - 256 - 18

// bind claims an address in the kernel and steers what comes to it here.
func (p *opener) bind(local netip.AddrPort) (netip.AddrPort, func() error, error) {
	fd, bound := -1, local
	if !p.o.Unclaimed {
		err := netif.InNamespace(int(p.ns.Fd()), func() (err error) {
			fd, bound, err = claim(local)
			return err
		})
		if err != nil {
			return local, nil, err
		}
	} else if local.Port() == 0 {
		return local, nil, fmt.Errorf("%w: no port, and nobody chooses one: Unclaimed", ErrOptions)
	}
	id, err := p.program.AddRule(ruleOf(bound, p.o.Any), xdp.Target{Base: p.o.Slot})
	if err != nil {
		closeFD(fd)
		if errors.Is(err, xdp.ErrRuleExists) {
			err = os.NewSyscallError("bind", syscall.EADDRINUSE)
		}
		return local, nil, err
	}
	return bound, func() error {
		err := p.program.RemoveRule(id)
		closeFD(fd)
		return err
	}, nil
}

// ruleOf matches the datagrams for the interface itself that a socket of the kernel on this address
// would get, or any. An address that is given need not be the interface's: it may be the host's on
// another one.
func ruleOf(local netip.AddrPort, every bool) xdp.Rule {
	a := local.Addr()
	r := xdp.Rule{UDPPort: local.Port(), Local: !every && a.IsUnspecified()}
	switch {
	case !a.IsUnspecified():
		r.Dst, r.Untagged = netip.PrefixFrom(a.WithZone(""), a.BitLen()), !every
	case a.Is4():
		r.EtherType = 0x0800
	}
	return r
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

func zoneIndex(zone string) int {
	if zone == "" {
		return 0
	}
	if n, err := strconv.Atoi(zone); err == nil {
		return n
	}
	ifi, err := net.InterfaceByName(zone)
	if err != nil {
		return 0
	}
	return ifi.Index
}

// resolver follows the kernel's routes unless somebody else knows the ways.
func (p *opener) resolver() error {
	if p.o.Resolver != nil {
		return nil
	}
	t, err := netif.OpenTable(p.ifi.Index, netif.TableOptions{})
	if err != nil {
		return err
	}
	p.o.Resolver = t
	p.defers(t.Close)
	return nil
}

// watch has the stack fail as soon as its interface is gone, of which no socket tells by itself,
// and has the program know what is addressed to the interface itself.
func (p *opener) watch(s *Stack) error {
	o := netif.WatchOptions{Poll: -1, OnEvent: func(e netif.Event) bool {
		if e.Kind == netif.Removed {
			s.fail(&shm.Error{Pkg: pkg, Op: "use", Name: p.ifi.Name, Err: xdp.ErrDeviceGone})
		}
		return true
	}}
	var first error // of SetLocal; what it could not take later comes again
	if told, program := false, p.program; !p.o.Any {
		o.Poll = 0 // groups are looked at
		o.OnLocal = func(l xdp.Local) bool {
			err := program.SetLocal(l)
			if !told && !errors.Is(err, xdp.ErrRulesFull) {
				first = err
			}
			told = true
			return err == nil
		}
	}
	w, err := netif.Watch(p.ifi.Index, o)
	if err != nil {
		return err
	}
	s.watcher = w.Close
	return first
}

// claim holds an address by a socket of the kernel that gets nothing: it is bound, and a filter
// drops what is not steered past it.
func claim(local netip.AddrPort) (fd int, bound netip.AddrPort, err error) {
	fd, bound = -1, local
	defer func() {
		if err != nil && fd >= 0 {
			_ = unix.Close(fd)
			fd = -1
		}
	}()
	family := unix.AF_INET
	if local.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fd, bound, os.NewSyscallError("socket", err)
	}
	if family == unix.AF_INET6 && !local.Addr().IsUnspecified() {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	} else if family == unix.AF_INET6 {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(drop)), Filter: &drop[0]})
	if err != nil {
		return fd, bound, os.NewSyscallError("setsockopt", err)
	}
	if err = unix.Bind(fd, sockaddr(local)); err != nil {
		return fd, bound, os.NewSyscallError("bind", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return fd, bound, os.NewSyscallError("getsockname", err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		bound = netip.AddrPortFrom(local.Addr(), uint16(sa.Port))
	case *unix.SockaddrInet6:
		bound = netip.AddrPortFrom(local.Addr(), uint16(sa.Port))
	}
	return fd, bound, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	sa := &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	if i := zoneIndex(a.Addr().Zone()); i > 0 {
		sa.ZoneId = uint32(i)
	}
	return sa
}
