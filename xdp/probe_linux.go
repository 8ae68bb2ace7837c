package xdp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/shm"
)

// Probe finds out what an interface of the calling thread's network namespace and the kernel can
// do, by asking and by trying. It loads the steering program without attaching it, and opens a
// socket in copy mode on queue 0 for a moment; neither disturbs traffic. It works without privilege
// and then says what is missing. The error is [ErrNoDevice], or that of asking.
func Probe(ifname string) (*ProbeReport, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const op = "probe"
	ifi, err := findInterface(op, ifname)
	if err != nil {
		return nil, err
	}
	program, flags, err := askLink(ifi.Index)
	if err != nil {
		return nil, &shm.Error{Pkg: pkg, Op: op, Name: ifname, Err: err}
	}
	r := &probed{ProbeReport: ProbeReport{Interface: ifname, Index: ifi.Index, MTU: ifi.MTU,
		Program: program}, mac: ifi.HardwareAddr, up: flags&unix.IFF_UP != 0, host: probeHost()}
	r.Driver, r.NetNS = askSocket(ifname)
	const running = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP
	r.running = flags&running == running
	r.features, r.queues = askDevice(ifi.Index)
	p := &Program{ifname: ifname}
	r.host.programErr = p.load(ProgramOptions{Sockets: 1, Rules: 1})
	if r.host.programErr == nil {
		r.host.programErr = p.Close()
	}
	r.host.granted, r.SocketErr = trySocket(ifname)
	r.judge()
	r.Usable = !slices.ContainsFunc(r.Findings, amiss)
	return &r.ProbeReport, nil
}

// askSocket returns the name of the driver, and what names the network namespace of the calling
// thread. What the kernel does not say is zero.
func askSocket(ifname string) (driver string, netns uint64) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", 0
	}
	defer unix.Close(fd)
	if info, err := unix.IoctlGetEthtoolDrvinfo(fd, ifname); err == nil {
		driver = unix.ByteSliceToString(info.Driver[:])
	}
	netns, _ = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return driver, netns
}

// trySocket opens a socket in copy mode, which does not touch the driver.
func trySocket(ifname string) (g SocketInfo, err error) {
	u, err := NewUMEM(UMEMOptions{Frames: 16})
	if err != nil {
		return g, err
	}
	defer u.Close(context.Background())
	// A socket that was closed a moment ago, as by the probe before, holds the queue a little longer.
	const patience = 100 * time.Millisecond
	s, err := Open(context.Background(), ifname, 0, u, Options{Mode: BindCopy,
		BusyTimeout: patience})
	if err != nil {
		return g, err
	}
	return s.Info(), s.Close()
}

// neededCaps by what they are for; the last is enough for BPF where it stands for it.
var neededCaps = []struct {
	name string
	bit  uint
	or   uint
}{
	{"CAP_NET_RAW", unix.CAP_NET_RAW, unix.CAP_NET_RAW},
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN, unix.CAP_NET_ADMIN},
	{"CAP_BPF", unix.CAP_BPF, unix.CAP_SYS_ADMIN},
}

func probeHost() (h hostFindings) {
	caps := effectiveCaps()
	has := func(bit uint) bool { return caps&(1<<bit) != 0 }
	for _, c := range neededCaps {
		if !has(c.bit) && !has(c.or) {
			h.missingCaps = append(h.missingCaps, c.name)
		}
	}
	h.memlockFree = has(unix.CAP_IPC_LOCK)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err == nil {
		h.memlockBytes = limit.Cur
	}
	h.hugePageBytes, h.hugePagesFree = hugePages()
	return h
}

// effectiveCaps returns the bits of the calling thread, none if it cannot be known.
func effectiveCaps() uint64 {
	line := field(fmt.Sprintf("/proc/self/task/%d/status", unix.Gettid()), "CapEff:")
	n, _ := strconv.ParseUint(line, 16, 64)
	return n
}

func hugePages() (size uint64, free int) {
	kib, _ := strconv.ParseUint(field("/proc/meminfo", "Hugepagesize:"), 10, 64)
	free, _ = strconv.Atoi(field("/proc/meminfo", "HugePages_Free:"))
	return kib << 10, free
}

// field returns the word behind a key at the beginning of a line.
func field(path, key string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			if words := strings.Fields(rest); len(words) > 0 {
				return words[0]
			}
		}
	}
	return ""
}

// refuseAttached returns a *BusyError if the interface has a program.
func refuseAttached(ifi *net.Interface) error {
	info, _, err := askLink(ifi.Index)
	if err != nil {
		return &shm.Error{Pkg: pkg, Op: "look for a program", Name: ifi.Name, Err: err}
	}
	if info.ID == 0 {
		return nil
	}
	return &BusyError{Err: ErrProgramAttached, Ifname: ifi.Name, Program: info}
}

// askLink asks rtnetlink for the flags of an interface (IFF_UP) and its XDP program, whose ID is 0
// if it has none. Of several it is the one in the driver, which the netlink package's own answer
// does not tell.
func askLink(ifindex int) (info ProgramInfo, flags uint32, err error) {
	req, about := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0), nl.NewIfInfomsg(unix.AF_UNSPEC)
	about.Index = int32(ifindex)
	req.AddData(about)
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	for _, m := range msgs {
		if len(m) < unix.SizeofIfInfomsg {
			continue
		}
		flags = nl.DeserializeIfInfomsg(m).Flags
		link, err1 := attributes(m[unix.SizeofIfInfomsg:])
		programs, err2 := attributes(link[unix.IFLA_XDP])
		err = errors.Join(err, err1, err2)
		for _, in := range []struct {
			where uint16
			mode  AttachMode
		}{{unix.IFLA_XDP_HW_PROG_ID, AttachAuto}, {unix.IFLA_XDP_SKB_PROG_ID, AttachGeneric},
			{unix.IFLA_XDP_DRV_PROG_ID, AttachNative}} {
			if id := number(programs[in.where]); id != 0 {
				info.ID, info.Mode = uint32(id), in.mode
			}
		}
	}
	info.Name = programName(info.ID)
	return info, flags, err
}

// programName asks for what takes a privilege of its own, so not knowing it is no error.
func programName(id uint32) string {
	if id == 0 {
		return ""
	}
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return ""
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// The netdev family of generic netlink, which x/sys does not name.
const (
	netdevFamily    = "netdev"
	netdevDevGet    = 1
	netdevQueueGet  = 10
	netdevIfindex   = 1
	netdevXDP       = 3
	netdevZCSegs    = 4
	netdevRxMeta    = 5
	netdevXSK       = 6
	netdevQueueIf   = 2
	netdevQueueType = 3
	netdevQueueNAPI = 4
	netdevQueueTx   = 1
)

// askDevice asks for features and queues. What the kernel does not tell stays zero.
func askDevice(ifindex int) (f *deviceFeatures, q queueCounts) {
	index := uint32(ifindex)
	devices, err := genl(netdevFamily, netdevDevGet, 0,
		nl.NewRtAttr(netdevIfindex, nl.Uint32Attr(index)))
	if err == nil && len(devices) == 1 {
		a := devices[0]
		f = &deviceFeatures{xdp: number(a[netdevXDP]), rxMetadata: number(a[netdevRxMeta]),
			txMetadata: number(a[netdevXSK]), zeroCopySegments: uint32(number(a[netdevZCSegs]))}
	}
	queues, err := genl(netdevFamily, netdevQueueGet, unix.NLM_F_DUMP,
		nl.NewRtAttr(netdevQueueIf, nl.Uint32Attr(index)))
	if err == nil {
		for _, a := range queues {
			switch {
			case number(a[netdevQueueType]) == netdevQueueTx:
				q.tx++
			default:
				q.rx++
				if number(a[netdevQueueNAPI]) != 0 {
					q.busyPoll++
				}
			}
		}
	}
	header := nl.NewRtAttr(unix.ETHTOOL_A_CHANNELS_HEADER|unix.NLA_F_NESTED, nil)
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_INDEX, nl.Uint32Attr(index))
	channels, err := genl("ethtool", unix.ETHTOOL_MSG_CHANNELS_GET, 0, header)
	if err == nil && len(channels) == 1 {
		a := channels[0]
		both := int(number(a[unix.ETHTOOL_A_CHANNELS_COMBINED_MAX]))
		q.rxMax = int(number(a[unix.ETHTOOL_A_CHANNELS_RX_MAX])) + both
		q.txMax = int(number(a[unix.ETHTOOL_A_CHANNELS_TX_MAX])) + both
		// The kernel lists queues, with more about each, only since 6.8 and of interfaces that are up.
		if q.rx == 0 {
			both := int(number(a[unix.ETHTOOL_A_CHANNELS_COMBINED_COUNT]))
			q.rx = int(number(a[unix.ETHTOOL_A_CHANNELS_RX_COUNT])) + both
			q.tx = int(number(a[unix.ETHTOOL_A_CHANNELS_TX_COUNT])) + both
		}
	}
	return f, q
}

// genl asks a family of generic netlink, and returns the attributes of each answer by type.
func genl(family string, command uint8, flags int, attr nl.NetlinkRequestData) (
	answers []map[uint16][]byte, err error) {
	id, err := genlFamily(family)
	if err != nil {
		return nil, err
	}
	return genlAsk(int(id), command, flags, attr)
}

// genlFamily asks for the number of a family.
func genlFamily(name string) (id uint16, err error) {
	answers, err := genlAsk(unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, 0,
		nl.NewRtAttr(unix.CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated(name)))
	if err != nil {
		return 0, err
	}
	for _, a := range answers {
		if b := a[unix.CTRL_ATTR_FAMILY_ID]; len(b) == 2 {
			return binary.NativeEndian.Uint16(b), nil
		}
	}
	return 0, unix.EBADMSG
}

// genlAsk sends one request to the family of a number.
func genlAsk(family int, command uint8, flags int, attr nl.NetlinkRequestData) (
	answers []map[uint16][]byte, err error) {
	req := nl.NewNetlinkRequest(family, flags)
	req.AddData(genlHeader{command, genlVersion})
	req.AddData(attr)
	msgs, err := exchange(req.Serialize(), flags&unix.NLM_F_DUMP != 0)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		if len(m.Data) < nl.SizeofGenlmsg {
			return nil, unix.EBADMSG
		}
		answer, err := attributes(m.Data[nl.SizeofGenlmsg:])
		if err != nil {
			return nil, err
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

// attributes returns those in a message, or nested in another one, by type.
func attributes(b []byte) (map[uint16][]byte, error) {
	attrs, err := nl.ParseRouteAttr(b)
	out := map[uint16][]byte{}
	for _, a := range attrs {
		out[a.Attr.Type&^uint16(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)] = a.Value
	}
	return out, err
}

// exchange sends a request and returns the answers to it: one, or with dump all up to the end. The
// netlink package's own takes one answer for all, since this family does not mark them as several.
func exchange(request []byte, dump bool) (answers []syscall.NetlinkMessage, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	timeout := unix.Timeval{Sec: 5}
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})); err != nil {
		return nil, err
	}
	for {
		buf := make([]byte, 64<<10) // answers refer to it
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		msgs, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			switch m.Header.Type {
			case unix.NLMSG_ERROR, unix.NLMSG_DONE:
				if len(m.Data) >= 4 {
					if n := int32(binary.NativeEndian.Uint32(m.Data)); n < 0 {
						return nil, unix.Errno(-n)
					}
				}
				return answers, nil
			}
			answers = append(answers, m)
			if !dump {
				return answers, nil
			}
		}
	}
}

// genlHeader is command, version, and two bytes that must be zero. The netlink package's own header
// sends what happens to lie behind it in memory for these two: newer families refuse that, and it
// may belong to another goroutine that is writing it.
type genlHeader [nl.SizeofGenlmsg]byte

// genlVersion is what every family here has. The kernel gives it to a family's own code, and none
// of theirs looks.
const genlVersion = 1

// Len is the number of bytes.
func (h genlHeader) Len() int { return len(h) }

// Serialize returns the bytes.
func (h genlHeader) Serialize() []byte { return h[:] }

// number reads an attribute of 4 or 8 bytes; 0 if it is not there.
func number(b []byte) uint64 {
	switch len(b) {
	case 4:
		return uint64(binary.NativeEndian.Uint32(b))
	case 8:
		return binary.NativeEndian.Uint64(b)
	}
	return 0
}
