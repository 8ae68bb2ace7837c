package xdp

import (
	"encoding/binary"
	"net"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/shmring/shmring/shm"
	"golang.org/x/sys/unix"
)

// Attributes and values of IFLA_XDP that x/sys does not name.
const (
	iflaXDPAttached  = 2
	iflaXDPProgID    = 4
	iflaXDPDrvProgID = 5 // these three if there are several
	iflaXDPSKBProgID = 6
	iflaXDPHWProgID  = 7
	xdpAttachedDrv   = 1
	xdpAttachedSKB   = 2
	netlinkAttrFlags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
)

// refuseAttached returns a *ProgramAttachedError if the interface has a program.
func refuseAttached(ifi *net.Interface) error {
	info, err := attachedProgram(ifi.Index)
	if err != nil {
		return &shm.Error{Pkg: pkg, Op: "look for a program", Name: ifi.Name, Err: err}
	}
	if info.ID == 0 {
		return nil
	}
	return &ProgramAttachedError{Ifname: ifi.Name, ProgramInfo: info}
}

// attachedProgram asks rtnetlink for the XDP program of an interface; its ID is 0 if it has none.
func attachedProgram(ifindex int) (info ProgramInfo, err error) {
	rib, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return info, err
	}
	msgs, err := syscall.ParseNetlinkMessage(rib)
	if err != nil {
		return info, err
	}
	for _, m := range msgs {
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg ||
			binary.NativeEndian.Uint32(m.Data[4:]) != uint32(ifindex) {
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return info, err
		}
		for _, a := range attrs {
			if a.Attr.Type&^netlinkAttrFlags == unix.IFLA_XDP {
				info = parseXDPAttr(a.Value)
			}
		}
	}
	info.Name = programName(info.ID)
	return info, nil
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

// parseXDPAttr walks the attributes nested in IFLA_XDP.
func parseXDPAttr(b []byte) (info ProgramInfo) {
	several := map[uint16]uint32{} // by attribute
	for len(b) >= unix.SizeofRtAttr {
		n := int(binary.NativeEndian.Uint16(b))
		kind := binary.NativeEndian.Uint16(b[2:]) &^ uint16(netlinkAttrFlags)
		if n < unix.SizeofRtAttr || n > len(b) {
			break
		}
		v := b[unix.SizeofRtAttr:n]
		switch {
		case kind == iflaXDPProgID && len(v) >= 4:
			info.ID = binary.NativeEndian.Uint32(v)
		case kind >= iflaXDPDrvProgID && kind <= iflaXDPHWProgID && len(v) >= 4:
			several[kind] = binary.NativeEndian.Uint32(v)
		case kind == iflaXDPAttached && len(v) >= 1 && v[0] == xdpAttachedDrv:
			info.Mode = AttachNative
		case kind == iflaXDPAttached && len(v) >= 1 && v[0] == xdpAttachedSKB:
			info.Mode = AttachGeneric
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	switch drv, skb := several[iflaXDPDrvProgID], several[iflaXDPSKBProgID]; {
	case info.ID != 0:
	case drv != 0:
		info.ID, info.Mode = drv, AttachNative
	case skb != 0:
		info.ID, info.Mode = skb, AttachGeneric
	default:
		info.ID = several[iflaXDPHWProgID]
	}
	return info
}
