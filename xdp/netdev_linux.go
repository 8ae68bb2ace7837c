package xdp

import (
	"encoding/binary"
	"errors"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

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
		attrs, err := nl.ParseRouteAttr(m.Data[nl.SizeofGenlmsg:])
		if err != nil {
			return nil, err
		}
		answer := map[uint16][]byte{}
		for _, a := range attrs {
			answer[a.Attr.Type&^uint16(netlinkAttrFlags)] = a.Value
		}
		answers = append(answers, answer)
	}
	return answers, nil
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
