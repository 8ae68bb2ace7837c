package xdp

import (
	"encoding/binary"
	"syscall"

	"github.com/vishvananda/netlink"
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
func askDevice(ifindex int) (f *DeviceFeatures, q QueueCounts) {
	index := uint32(ifindex)
	devices, err := genl(netdevFamily, netdevDevGet, 0,
		nl.NewRtAttr(netdevIfindex, nl.Uint32Attr(index)))
	if err == nil && len(devices) == 1 {
		a := devices[0]
		f = &DeviceFeatures{XDP: XDPFeatures(number(a[netdevXDP])),
			ZeroCopySegments: uint32(number(a[netdevZCSegs])),
			RxMetadata:       RxMetadata(number(a[netdevRxMeta])),
			TxMetadata:       TxMetadata(number(a[netdevXSK]))}
	}
	queues, err := genl(netdevFamily, netdevQueueGet, unix.NLM_F_DUMP,
		nl.NewRtAttr(netdevQueueIf, nl.Uint32Attr(index)))
	if err == nil {
		for _, a := range queues {
			switch {
			case number(a[netdevQueueType]) == netdevQueueTx:
				q.Tx++
			default:
				q.Rx++
				if number(a[netdevQueueNAPI]) != 0 {
					q.BusyPoll++
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
		q.RxMax = int(number(a[unix.ETHTOOL_A_CHANNELS_RX_MAX])) + both
		q.TxMax = int(number(a[unix.ETHTOOL_A_CHANNELS_TX_MAX])) + both
	}
	return f, q
}

// genl sends one request of generic netlink, and returns the attributes of each answer by type.
func genl(family string, command uint8, flags int, attr nl.NetlinkRequestData) (
	answers []map[uint16][]byte, err error) {
	f, err := netlink.GenlFamilyGet(family)
	if err != nil {
		return nil, err
	}
	req := nl.NewNetlinkRequest(int(f.ID), flags)
	req.AddData(&nl.Genlmsg{Command: command, Version: uint8(f.Version)})
	req.AddData(attr)
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		if len(m) < nl.SizeofGenlmsg {
			return nil, syscall.EBADMSG
		}
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
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
