package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/xdp"
)

// The ends of the wire, as veth.Open makes them.
var endNames = [2]string{"shmring0", "shmring1"}
var endAddrs = [2]netip.AddrPort{
	netip.MustParseAddrPort("192.0.2.1:7000"), netip.MustParseAddrPort("192.0.2.2:7001"),
}

type portOptions struct {
	which  int // the end
	mode   xdp.AttachMode
	echoes bool // packets are sent back
	sends  bool // and receives nothing
}

// socketPort is a port on an xdp.Socket.
type socketPort struct {
	socket   *xdp.Socket
	program  *xdp.Program
	umem     *xdp.UMEM
	frame    [frameBytes]byte
	echoes   bool
	received [maxBatch]xdp.Received
	last     []xdp.Received // not given back yet
	sent     [maxBatch]xdp.Sent
	post     int // posted and not reaped
}

// enterEnd moves the thread to the namespace of an end and returns the frame that is sent there.
func enterEnd(which int) (frame [frameBytes]byte, err error) {
	var macs [2][6]byte
	for _, end := range [2]int{1 - which, which} {
		if err := veth.Enter(netnsFD + end); err != nil {
			return frame, err
		}
		ifi, err := net.InterfaceByName(endNames[end])
		if err != nil {
			return frame, err
		}
		copy(macs[end][:], ifi.HardwareAddr)
	}
	t, err := packet.NewTemplate(macs[which], macs[1-which], endAddrs[which], endAddrs[1-which])
	if err == nil {
		_, err = t.Build(frame[:], make([]byte, payloadBytes))
	}
	binary.BigEndian.PutUint16(frame[checksumOff:], 0) // none: the payload changes
	return frame, err
}

func openSocketPort(o portOptions) (port, error) {
	p := &socketPort{echoes: o.echoes}
	var err error
	if p.frame, err = enterEnd(o.which); err != nil {
		return nil, err
	}
	if err := p.open(o); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *socketPort) open(o portOptions) (err error) {
	if p.umem, err = xdp.NewUMEM(xdp.UMEMOptions{}); err != nil {
		return err
	}
	if p.socket, err = xdp.Open(context.Background(), endNames[o.which], 0, p.umem, xdp.Options{
		Mode: xdp.BindCopy}); err != nil || o.sends {
		return err
	}
	if p.program, err = xdp.Attach(endNames[o.which], xdp.ProgramOptions{Mode: o.mode}); err != nil {
		return err
	}
	rule := xdp.Rule{UDPPort: endAddrs[o.which].Port()}
	if _, err = p.program.AddRule(rule, xdp.Target{}); err != nil {
		return err
	}
	return p.socket.Register(p.program, 0)
}

func (p *socketPort) close() {
	closeAll(p.socket, p.program)
	if p.umem != nil {
		_ = p.umem.Close(context.Background())
	}
}

func (p *socketPort) put(s uint64, n int) (int, error) {
	k := 0
	for ; k < n; k++ {
		frame, buf, ok := p.socket.Acquire()
		if !ok {
			break
		}
		copy(buf, p.frame[:])
		binary.LittleEndian.PutUint64(buf[sequenceOff:], s)
		if err := p.socket.Post(frame, frameBytes, 0); err != nil {
			return k, err
		}
		s++
	}
	return k, p.kick(k)
}

// kick sends what was posted and takes back what the kernel is done with.
func (p *socketPort) kick(posted int) error {
	p.post += posted
	p.socket.Flush()
	if _, err := p.socket.Kick(); err != nil {
		return err
	}
	for p.post > 0 {
		n := p.socket.Reap(p.sent[:])
		p.post -= n
		if n < len(p.sent) {
			break
		}
	}
	if p.echoes { // what was sent back is free to receive into
		p.socket.Fill(maxBatch)
	}
	return nil
}

func (p *socketPort) get(n int) (int, uint64, error) {
	k := p.socket.Receive(p.received[:n])
	if k == 0 {
		return 0, 0, nil
	}
	var sum uint64
	for _, r := range p.received[:k] {
		pkt := p.socket.Packet(r)
		if len(pkt) != frameBytes {
			return 0, 0, fmt.Errorf("packet of %d bytes, not %d", len(pkt), frameBytes)
		}
		sum += binary.LittleEndian.Uint64(pkt[sequenceOff:])
	}
	p.last = p.received[:k]
	if !p.echoes {
		p.socket.Recycle(p.last)
	}
	return k, sum, nil
}

func (p *socketPort) back() error {
	for _, r := range p.last {
		copy(p.socket.Packet(r), p.frame[:sequenceOff]) // all headers of the way back
		if !p.socket.Forward(r, 0) {
			return errors.New("no room to send back")
		}
	}
	n := len(p.last)
	p.last = nil
	return p.kick(n)
}

func (p *socketPort) settle() error {
	for p.post > 0 {
		if err := p.kick(0); err != nil {
			return err
		}
	}
	return nil
}

func (p *socketPort) await() error { return pollIn(p.socket.FD()) }

// pollIn blocks until the descriptor is readable.
func pollIn(fd int) error {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], int(packetWait.Milliseconds()))
	if err == nil && n == 0 {
		err = errLost
	}
	if err == unix.EINTR {
		err = nil
	}
	return err
}

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
