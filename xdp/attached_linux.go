package xdp

import (
	"encoding/binary"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Attributes and values of IFLA_XDP that x/sys does not name.
const (
	iflaXDPAttached  = 2
	iflaXDPProgID    = 4
	xdpAttachedDrv   = 1
	xdpAttachedSKB   = 2
	netlinkAttrFlags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
)

// refuseAttached returns a *ProgramAttachedError if the interface has a program.
func refuseAttached(ifi *net.Interface) error {
	id, mode, err := attachedProgram(ifi.Index)
	if err != nil {
		return &Error{Pkg: pkg, Op: "look for a program", Name: ifi.Name, Err: err}
	}
	if id == 0 {
		return nil
	}
	return &ProgramAttachedError{Ifname: ifi.Name, ID: id, Mode: mode}
}

// attachedProgram asks rtnetlink for the XDP program of an interface; id is 0 if it has none.
func attachedProgram(ifindex int) (id uint32, mode AttachMode, err error) {
	rib, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return 0, 0, err
	}
	msgs, err := syscall.ParseNetlinkMessage(rib)
	if err != nil {
		return 0, 0, err
	}
	for _, m := range msgs {
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg ||
			binary.NativeEndian.Uint32(m.Data[4:]) != uint32(ifindex) {
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return 0, 0, err
		}
		for _, a := range attrs {
			if a.Attr.Type&^netlinkAttrFlags == unix.IFLA_XDP {
				id, mode = parseXDPAttr(a.Value)
			}
		}
	}
	return id, mode, nil
}

// parseXDPAttr walks the attributes nested in IFLA_XDP.
func parseXDPAttr(b []byte) (id uint32, mode AttachMode) {
	for len(b) >= unix.SizeofRtAttr {
		n := int(binary.NativeEndian.Uint16(b))
		kind := binary.NativeEndian.Uint16(b[2:]) &^ uint16(netlinkAttrFlags)
		if n < unix.SizeofRtAttr || n > len(b) {
			break
		}
		v := b[unix.SizeofRtAttr:n]
		switch {
		case kind == iflaXDPProgID && len(v) >= 4:
			id = binary.NativeEndian.Uint32(v)
		case kind == iflaXDPAttached && len(v) >= 1 && v[0] == xdpAttachedDrv:
			mode = AttachNative
		case kind == iflaXDPAttached && len(v) >= 1 && v[0] == xdpAttachedSKB:
			mode = AttachGeneric
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	return id, mode
}
