package bench

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// udpPort is a port on a net.UDPConn, which knows one packet at a time, and to block.
type udpPort struct {
	conn *net.UDPConn
	out  [payloadBytes]byte
	in   [payloadBytes]byte
}

func openUDPConn(o portOptions) (port, error) {
	if err := pinThreads(); err != nil {
		return nil, err
	}
	if _, err := enterEnd(o.which); err != nil {
		return nil, err
	}
	conn, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(endAddrs[o.which]),
		net.UDPAddrFromAddrPort(endAddrs[1-o.which]))
	if err != nil {
		return nil, err
	}
	const buffer = 16 << 20
	raw, err := conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer)
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, buffer)
		})
	}
	return &udpPort{conn: conn}, err
}

// pinThreads pins the threads that the runtime has already as this one is pinned, from which those
// to come are made.
func pinThreads() error {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return err
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil && err != unix.ESRCH {
			return err
		}
	}
	return nil
}

func (p *udpPort) put(s uint64, n int) (int, error) {
	for k := range n {
		binary.LittleEndian.PutUint64(p.out[sequenceOff-payloadOff:], s)
		if _, err := p.conn.Write(p.out[:]); err != nil {
			return k, err
		}
		s++
	}
	return n, nil
}

// get waits for the first packet, and takes no more: whether there are more it cannot tell.
func (p *udpPort) get(int) (int, uint64, error) {
	n, err := p.conn.Read(p.in[:])
	if err != nil {
		return 0, 0, err
	}
	if n != payloadBytes {
		return 0, 0, fmt.Errorf("datagram of %d bytes, not %d", n, payloadBytes)
	}
	return 1, binary.LittleEndian.Uint64(p.in[sequenceOff-payloadOff:]), nil
}

func (p *udpPort) back() error {
	_, err := p.conn.Write(p.in[:])
	return err
}

func (p *udpPort) settle() error { return nil }
func (p *udpPort) await() error  { return nil } // get does
func (p *udpPort) close()        { _ = p.conn.Close() }
