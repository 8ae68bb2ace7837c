package device

import (
	"encoding/binary"
	"net/netip"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// Commands are entries of the submission queue. Their flags say which they are, and nothing else
// may be set.
//
//	             send                             return
//	Context      comes back with the completion   0
//	Buf          payload, in the application's    the frame, in its UMEM
//	Len          bytes of payload                 0
//	Data, Tag    destination address, 16 bytes    generation: the completion's sequence, 0
//	Src          destination port, own port << 16 0
const (
	sendFlags   = cq.FlagSend | cq.FlagMsg
	injectFlags = sendFlags | cq.FlagInject
	returnFlags = cq.FlagFrame
)

// sendCommand asks for a datagram to be sent.
func sendCommand(context uint64, flags cq.Flags, payload shm.Ref, n int, from uint16,
	to netip.AddrPort) cq.Entry {
	ip := to.Addr().As16()
	return cq.Entry{Context: context, Flags: flags, Len: uint64(n), Buf: payload,
		Data: binary.LittleEndian.Uint64(ip[:]), Tag: binary.LittleEndian.Uint64(ip[8:]),
		Src: cq.From(cq.Addr(to.Port()) | cq.Addr(from)<<16)}
}

// target is where a command wants a datagram to go, and from which port.
type target struct {
	to   netip.AddrPort
	from uint16
}

func targetOf(e *cq.Entry) target {
	var ip [16]byte
	binary.LittleEndian.PutUint64(ip[:], e.Data)
	binary.LittleEndian.PutUint64(ip[8:], e.Tag)
	addr := netip.AddrFrom16(ip).Unmap()
	ports := e.Src.Addr()
	return target{to: netip.AddrPortFrom(addr, uint16(ports)), from: uint16(ports >> 16)}
}

// returnCommand gives the frame of a receive completion back.
func returnCommand(e *cq.Entry) cq.Entry {
	return cq.Entry{Flags: returnFlags, Buf: e.Buf, Data: uint64(e.Meta.Seq()),
		Meta: cq.MetaNoContext}
}
