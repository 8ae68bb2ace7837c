package torture

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"time"
)

// The wire's port, and the most that a datagram carries here.
const (
	wirePort    = 6000
	wirePayload = 1200
	wireHead    = 16 // number of the datagram, checksum of the rest
)

// wireRole is the other end of the device: it answers every datagram, and sends some of its own.
// The kernel's stack is between, so what it loses is nobody's fault.
func wireRole() *role {
	return &role{name: "wire", places: 1, asked: true, stops: true, drains: true,
		with: []string{"device"}, run: (*child).answer}
}

// stamp numbers a datagram and closes it with a checksum.
func stamp(b []byte, number uint64) {
	binary.LittleEndian.PutUint64(b, number)
	binary.LittleEndian.PutUint64(b[8:], number^sumOf(b[wireHead:]))
}

// stamped returns the number of a datagram that is whole.
func stamped(b []byte) (number uint64, ok bool) {
	if len(b) < wireHead {
		return 0, false
	}
	number = binary.LittleEndian.Uint64(b)
	return number, binary.LittleEndian.Uint64(b[8:]) == number^sumOf(b[wireHead:])
}

func sumOf(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b)
	return h.Sum64()
}

// answer sends what comes back under a number that nobody had before, and floods now and then.
func (c *child) answer() error {
	if err := c.enter(1); err != nil {
		return err
	}
	local, device := c.end(1), c.end(0)
	u, err := net.ListenUDP("udp4", &net.UDPAddr{IP: local.Addr.AsSlice(), Port: wirePort})
	if err != nil {
		return err
	}
	defer u.Close()
	number := uint64(os.Getpid()) << 32
	in, out := make([]byte, 2048), make([]byte, wireHead+2048)
	for c.ledger.phase() < phaseDrain {
		_ = u.SetReadDeadline(time.Now().Add(time.Millisecond))
		n, from, err := u.ReadFromUDPAddrPort(in)
		if err == nil {
			if _, ok := stamped(in[:n]); !ok {
				c.tell(kindUnpublished, "%d bytes from %v that nobody sent", n, from)
			}
			number++
			stamp(out[:wireHead+copy(out[wireHead:], in[:n])], number)
			_, _ = u.WriteToUDPAddrPort(out[:wireHead+n], from)
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			continue // what the kernel has against an earlier datagram
		}
		for range c.rnd.IntN(64) { // nobody asked for these
			number++
			n := wireHead + c.rnd.IntN(wirePayload)
			stamp(out[:n], number)
			port := 5000 + uint16(c.rnd.IntN(2))*100 + uint16(c.rnd.IntN(apps))
			_, _ = u.WriteToUDPAddrPort(out[:n], netip.AddrPortFrom(device.Addr, port))
		}
	}
	return nil
}
