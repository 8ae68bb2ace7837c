package xdp

import "golang.org/x/sys/unix"

// RingSizes is how many entries the rings of a socket have. Those of the fill and the completion
// ring are of all sockets on its queue.
type RingSizes struct{ Rx, Tx, Fill, Comp uint32 }

// RingSizes returns the sizes of the rings; after Close they mean nothing.
func (s *Socket) RingSizes() RingSizes {
	return RingSizes{Rx: uint32(len(s.rx.slots)), Tx: uint32(len(s.tx.slots)),
		Fill: uint32(len(s.fill.slots)), Comp: uint32(len(s.comp.slots))}
}

// Program returns the program that the socket was registered with last, nil if there is none.
func (s *Socket) Program() *Program {
	if len(s.slots) == 0 {
		return nil
	}
	return s.slots[len(s.slots)-1].program
}

// NetNSCookie names the network namespace of the socket, as long as the machine runs; 0 if the
// kernel does not say (before 5.14), or there is none.
func (s *Socket) NetNSCookie() uint64 {
	if s.closed || s.fd < 0 || s.sim != nil {
		return 0
	}
	cookie, err := unix.GetsockoptUint64(s.fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return cookie
}
