package netif

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/xdp"
)

// kernel is who tells of changes, and answers questions about an interface. A test plays it.
type kernel interface {
	// Receive waits for what the kernel tells.
	Receive() ([]syscall.NetlinkMessage, *unix.SockaddrNetlink, error)
	// Link fails with xdp.ErrNoDevice if there is no such interface.
	Link() (link, error)
	Addresses() (map[netip.Prefix]bool, error)
	Neighbour(netip.Addr) (neighbourState, error)
	// Use has the kernel treat a neighbour as if a packet had gone to it: the kernel finds out its
	// hardware address, or whether what it knows is still so. It needs CAP_NET_ADMIN.
	Use(netip.Addr) error
	// Route returns which way packets go: by the interface out if that is not 0.
	Route(dst netip.Addr, out int) (route, error)
	// Channels returns how many queues the interface uses. Not every driver says.
	Channels(name string) (rx, tx int, err error)
	// Groups returns those that are joined on the interface; none if the kernel does not say.
	Groups() (map[netip.Addr]bool, error)
	// Close ends Receive. Nobody asks any more.
	Close() error
}

// busy reports whether the kernel may answer if it is asked again.
func busy(err error) bool {
	for _, e := range []error{unix.ENOBUFS, unix.ENOMEM, unix.EAGAIN, unix.EBUSY, unix.EINTR,
		netlink.ErrDumpInterrupted} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

const (
	// receiveBytes is what the socket holds for a receiver that does not keep up.
	receiveBytes = 1 << 20
	// patience is how long an answer may take. It is there when the request has been sent; only a
	// full buffer loses it.
	patience = 2 * time.Second
)

// system is the kernel itself, in the network namespace of the thread that opened it.
type system struct {
	*nl.NetlinkSocket // that it tells of changes on
	index             int
	questions         *netlink.Handle
	raw               map[int]*nl.SocketHandle // for questions that a Handle does not know
	fd                int                      // a socket for ioctl
	groups            [2]*os.File
}

// groupFiles list the groups of a namespace: that of the thread that opens them, for as long as
// they are open.
var groupFiles = [2]string{"/proc/thread-self/net/igmp", "/proc/thread-self/net/igmp6"}

// openSystem makes sockets on which the kernel is asked about an interface, and one that gets what
// changes in the groups of news. They need no privilege.
func openSystem(index int, news ...uint) (*system, error) {
	s := &system{index: index, fd: -1}
	if err := s.open(news); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *system) open(news []uint) (err error) {
	if s.NetlinkSocket, err = nl.Subscribe(unix.NETLINK_ROUTE, news...); err != nil {
		return err
	}
	// Without the privilege to exceed the system's limit the socket gets as much as that allows.
	if s.SetReceiveBufferSize(receiveBytes, true) != nil {
		_ = s.SetReceiveBufferSize(receiveBytes, false)
	}
	if s.questions, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return err
	}
	raw, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	s.raw = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: raw}}
	timeout := unix.NsecToTimeval(patience.Nanoseconds())
	return errors.Join(raw.SetSendTimeout(&timeout), raw.SetReceiveTimeout(&timeout),
		s.questions.SetSocketTimeout(patience))
}

// openProbes makes what Channels and Groups need.
func (s *system) openProbes() (err error) {
	if s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	for i, path := range groupFiles {
		f, err := os.Open(path)
		switch {
		case err == nil:
			s.groups[i] = f
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
			return err
		} // without /proc, or a family, there are no groups
	}
	return nil
}

func (s *system) Close() (err error) {
	if s.NetlinkSocket != nil {
		s.NetlinkSocket.Close()
	}
	if s.questions != nil {
		s.questions.Close()
	}
	for _, h := range s.raw {
		h.Close()
	}
	if s.fd >= 0 {
		err = unix.Close(s.fd)
	}
	for _, f := range s.groups {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// ask puts a question that has one answer, which it returns.
func (s *system) ask(question, answer uint16, parts ...nl.NetlinkRequestData) ([]byte, error) {
	r := nl.NewNetlinkRequest(int(question), 0)
	r.Sockets = s.raw
	for _, p := range parts {
		r.AddData(p)
	}
	all, err := r.Execute(unix.NETLINK_ROUTE, answer)
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("netif: %d answers", len(all))
	}
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// link is what the kernel says about an interface.
type link struct {
	Name  string
	Flags uint32 // IFF_*
	MTU   int
	MAC   [6]byte
	// ProgramID is the XDP program's, 0 if there is none; of several, the one in the mode that
	// comes first: driver, generic, device.
	ProgramID uint32
}

// Up reports whether the interface is up and has a carrier.
func (l *link) Up() bool {
	return l.Flags&unix.IFF_UP != 0 && l.Flags&unix.IFF_RUNNING != 0
}

const skipStats = 8 // RTEXT_FILTER_SKIP_STATS, which neither library names

// Link does not use netlink.LinkByIndex because that has the driver asked about all of its virtual
// functions, and does not tell programs of several modes apart.
func (s *system) Link() (l link, err error) {
	if s.index <= 0 {
		return l, xdp.ErrNoDevice
	}
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(s.index)
	b, err := s.ask(unix.RTM_GETLINK, unix.RTM_NEWLINK, head,
		nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	if errors.Is(err, unix.ENODEV) {
		err = xdp.ErrNoDevice
	}
	if err != nil {
		return l, err
	}
	l.Flags = nl.DeserializeIfInfomsg(b).Flags
	for t, v := range attributes(b[unix.SizeofIfInfomsg:]) {
		switch t {
		case unix.IFLA_IFNAME:
			l.Name = unix.ByteSliceToString(v)
		case unix.IFLA_MTU:
			l.MTU = int(number(v))
		case unix.IFLA_ADDRESS:
			if len(v) == len(l.MAC) {
				l.MAC = [6]byte(v)
			}
		case unix.IFLA_XDP:
			programs := attributes(v)
			for mode := uint16(unix.IFLA_XDP_DRV_PROG_ID); l.ProgramID == 0 &&
				mode <= unix.IFLA_XDP_HW_PROG_ID; mode++ {
				l.ProgramID = number(programs[mode])
			}
		}
	}
	return l, nil
}

// attributes returns what stands in b by type; nothing if it cannot be.
func attributes(b []byte) map[uint16][]byte {
	all, _ := nl.ParseRouteAttr(b)
	values := make(map[uint16][]byte, len(all))
	for _, a := range all {
		values[a.Attr.Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)] = a.Value
	}
	return values
}

func number(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(v)
}

func (s *system) Addresses() (map[netip.Prefix]bool, error) {
	all, err := s.questions.AddrList(
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: s.index}}, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	addresses := map[netip.Prefix]bool{}
	for i := range all {
		a := &all[i]
		if a.IPNet == nil || a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 &&
			a.Flags&unix.IFA_F_OPTIMISTIC == 0 {
			continue // duplicates are being looked for, or one was found
		}
		mask := a.Mask
		if a.Peer != nil { // whose network it is
			mask = a.Peer.Mask
		}
		bits, _ := mask.Size()
		if p := netip.PrefixFrom(address(a.IP), bits); p.IsValid() {
			addresses[p] = true
		}
	}
	return addresses, nil
}

// address returns what b holds, or the zero Addr.
func address(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// neighbourState is what the kernel has of a neighbour. It is zero if that is nothing.
type neighbourState struct {
	State  int // NUD_*
	MAC    [6]byte
	HasMAC bool
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func (s *system) Neighbour(a netip.Addr) (n neighbourState, err error) {
	b, err := s.ask(unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH,
		&netlink.Ndmsg{Family: uint8(family(a)), Index: uint32(s.index)},
		nl.NewRtAttr(unix.NDA_DST, a.AsSlice()))
	if errors.Is(err, unix.ENOENT) {
		return n, nil
	}
	if err != nil {
		return n, err
	}
	is, err := netlink.NeighDeserialize(b)
	if err != nil {
		return n, err
	}
	n.State = is.State
	if n.HasMAC = len(is.HardwareAddr) == len(n.MAC); n.HasMAC {
		n.MAC = [6]byte(is.HardwareAddr)
	}
	return n, nil
}

func (s *system) Use(a netip.Addr) error {
	return s.questions.NeighSet(&netlink.Neigh{LinkIndex: s.index, Family: family(a),
		Flags: unix.NTF_USE, IP: a.AsSlice()})
}

// route is the kernel's answer which way packets go.
type route struct {
	Kind    int // RTN_*
	Out     int // index of the interface that packets leave by
	Gateway netip.Addr
	Source  netip.Addr
	MTU     int // 0: that of the interface
}

func (s *system) Route(dst netip.Addr, out int) (route, error) {
	all, err := s.questions.RouteGetWithOptions(dst.AsSlice(),
		&netlink.RouteGetOptions{OifIndex: out})
	if err != nil || len(all) == 0 {
		return route{}, err
	}
	r := &all[0]
	next := address(r.Gw)
	if via, ok := r.Via.(*netlink.Via); ok { // of another family than the route's (RFC 5549)
		next = address(via.Addr)
	}
	return route{r.Type, r.LinkIndex, next, address(r.Src), r.MTU}, nil
}

func (s *system) Groups() (map[netip.Addr]bool, error) {
	groups := map[netip.Addr]bool{}
	for i, add := range []func(map[netip.Addr]bool, []byte, int){addGroups4, addGroups6} {
		f := s.groups[i]
		if f == nil {
			continue
		}
		_, err := f.Seek(0, io.SeekStart)
		text, err2 := io.ReadAll(f)
		if err = errors.Join(err, err2); err != nil {
			return nil, err
		}
		add(groups, text, s.index)
	}
	return groups, nil
}

func (s *system) Channels(name string) (rx, tx int, err error) {
	c := ethtoolChannels{cmd: unix.ETHTOOL_GCHANNELS}
	err = channelsOf(s.fd, name, &c)
	return int(c.rx + c.combined), int(c.tx + c.combined), err
}

// ErrNamespace: the thread could not go to the network namespace. It needs CAP_SYS_ADMIN.
var ErrNamespace = errors.New("cannot enter the network namespace of the interface")

const threadNamespace = "/proc/thread-self/ns/net"

// OpenNamespace returns the network namespace of the calling thread.
func OpenNamespace() (*os.File, error) { return os.Open(threadNamespace) }

// InNamespace calls f in a network namespace: on the calling thread if that is there already, or
// else on another one, which needs CAP_SYS_ADMIN. After ErrNamespace f was not called.
func InNamespace(ns int, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var here, there unix.Stat_t
	err := errors.Join(unix.Stat(threadNamespace, &here), unix.Fstat(ns, &there))
	if err != nil || here.Ino == there.Ino && here.Dev == there.Dev {
		return f()
	}
	result := make(chan error, 1)
	go func() { result <- visit(ns, f) }()
	return <-result
}

// visit has the thread go back before anybody else can run on it. If it cannot, it ends with the
// goroutine.
func visit(ns int, f func() error) error {
	runtime.LockOSThread()
	home, err := OpenNamespace()
	if err == nil {
		defer home.Close()
		err = unix.Setns(ns, unix.CLONE_NEWNET)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("%w: %w", ErrNamespace, err)
	}
	err = f()
	if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return err
}
