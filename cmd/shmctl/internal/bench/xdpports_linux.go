package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
	"github.com/shmring/shmring/xdp/endpoint"
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

// endpointPort is a port on an endpoint: every packet goes through a completion queue, and every
// send has a completion that is read.
type endpointPort struct {
	socket *socketPort // whose socket and program the endpoint has
	dir    *shm.Dir
	q      *cq.Queue
	w      [2]*cq.Writer
	av     *cq.AddressVector
	e      *endpoint.Endpoint
	completions
	echoes   bool
	messages [maxBatch]endpoint.Msg
	payloads [maxBatch][payloadBytes]byte
	last     []cq.Entry // taken by get, and not sent back: good until the next turn
}

func openEndpointPort(o portOptions) (port, error) {
	p := &endpointPort{echoes: o.echoes, socket: &socketPort{}}
	var err error
	if p.socket.frame, err = enterEnd(o.which); err != nil {
		return nil, err
	}
	if err = p.socket.open(o); err == nil {
		err = p.open(o.which)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *endpointPort) open(which int) (err error) {
	if p.dir, err = shm.OpenDir(""); err != nil {
		return err
	}
	name := fmt.Sprintf("end%d", which)
	if p.q, err = cq.Create(cq.Named(p.dir, name), cq.Options{}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for i := range p.w {
		if p.w[i], err = cq.Attach(ctx, cq.Named(p.dir, name), cq.WriterOptions{}); err != nil {
			return err
		}
	}
	if p.av, err = cq.CreateAddresses(cq.Unnamed(name), cq.AddressOptions{Count: 8}); err != nil {
		return err
	}
	peers, err := p.av.Insert([][]byte{cq.AppendSockaddr(nil, endAddrs[1-which])}, cq.InsertOptions{})
	if err != nil {
		return err
	}
	for i := range p.messages {
		p.messages[i] = endpoint.Msg{Buf: p.payloads[i][:], To: peers[0]}
	}
	p.e, err = endpoint.Open(endpoint.Config{Socket: p.socket.socket, Receive: p.w[0],
		Transmit: p.w[1], Addresses: p.av, Local: endAddrs[which],
		Resolver: knownFrom(which, p.socket.frame)})
	return err
}

// known is a resolver that says, as that of the kernel's routes does, that nothing has changed.
type known struct{ endpoint.Static }

func (known) Generation() uint64 { return 1 }

// knownFrom resolves the other end, as a frame from an end has it.
func knownFrom(which int, f [frameBytes]byte) known {
	return known{endpoint.Static{endAddrs[1-which].Addr(): xdp.Hop{LocalMAC: [6]byte(f[6:12]),
		NextMAC: [6]byte(f[:6]), Source: endAddrs[which].Addr(), MTU: 1500}}}
}

func (p *endpointPort) close() {
	closeAll(p.e, p.w[0], p.w[1], p.q, p.av, p.dir)
	p.socket.close()
}

func (p *endpointPort) put(s uint64, n int) (int, error) {
	for i := range n {
		binary.LittleEndian.PutUint64(p.payloads[i][sequenceOff-payloadOff:], s+uint64(i))
	}
	return p.send(n)
}

// send posts the first n messages, and turns the crank.
func (p *endpointPort) send(n int) (int, error) {
	k, err := p.e.SendBatch(p.messages[:n])
	p.sending += k
	if err != nil && !errors.Is(err, cq.ErrWouldBlock) && !errors.Is(err, endpoint.ErrNoFrame) &&
		!errors.Is(err, cq.ErrFull) {
		return k, err
	}
	return k, p.turn()
}

// turn lets the endpoint work and reads what it completed.
func (p *endpointPort) turn() error {
	if _, err := p.e.Progress(); err != nil {
		return err
	}
	return p.take(p.q)
}

// completions are what a port reads from its queue.
type completions struct {
	sending int // accepted and not completed
	read    [4 * maxBatch]cq.Entry
	arrived []cq.Entry // the packets in it that get has not taken
}

// settled has all sends completed, as turn reads it.
func (c *completions) settled(turn func() error) error {
	for c.sending > 0 {
		if err := turn(); err != nil {
			return err
		}
	}
	return nil
}

// take reads once, and tells packets from ends of sends.
func (c *completions) take(q *cq.Queue) error {
	c.arrived = append(c.read[:0], c.arrived...)
	kept := len(c.arrived)
	n, err := cq.Read(q, c.read[kept:])
	if err != nil {
		if err == cq.ErrWouldBlock {
			return nil
		}
		return err
	}
	for i := kept; i < kept+n; i++ {
		if c.read[i].Flags&cq.FlagRecv == 0 {
			c.sending--
			continue
		}
		if at := len(c.arrived); at < i {
			c.read[at] = c.read[i]
		}
		c.arrived = c.read[:len(c.arrived)+1]
	}
	return nil
}

func (p *endpointPort) get(n int) (int, uint64, error) {
	if len(p.arrived) == 0 {
		if err := p.turn(); err != nil || len(p.arrived) == 0 {
			return 0, 0, err
		}
	}
	k := min(n, len(p.arrived))
	p.last, p.arrived = p.arrived[:k], p.arrived[k:]
	var sum uint64
	for i := range p.last {
		payload, err := p.e.Payload(&p.last[i])
		if err != nil {
			return 0, 0, err
		}
		sum += binary.LittleEndian.Uint64(payload[sequenceOff-payloadOff:])
	}
	if p.echoes {
		return k, sum, nil
	}
	return k, sum, p.e.Release(p.last...)
}

func (p *endpointPort) back() error {
	for i := range p.last {
		payload, err := p.e.Payload(&p.last[i])
		if err != nil {
			return err
		}
		copy(p.payloads[i][:], payload)
	}
	if err := p.e.Release(p.last...); err != nil {
		return err
	}
	for n := len(p.last); n > 0; {
		k, err := p.send(n)
		if err != nil {
			return err
		}
		if k > 0 && k < n { // those that found no room are first now
			copy(p.payloads[:], p.payloads[k:n])
		}
		n -= k
	}
	p.last = nil
	return nil
}

func (p *endpointPort) settle() error { return p.settled(p.turn) }

func (p *endpointPort) await() error { return pollIn(p.e.Socket().FD()) }

// servePath is where the device process of a side listens.
func servePath() string { return filepath.Join(shm.DefaultPath(), "device") }

// servedPort is role 1's part of a device case: the process that owns end A. Nothing is done by the
// calls of a port.
type servedPort struct {
	port
	server *wire.Served
}

func openServer(mode xdp.AttachMode) (port, error) {
	if err := pinThreads(); err != nil {
		return nil, err
	}
	frame, err := enterEnd(0)
	if err != nil {
		return nil, err
	}
	s, err := wire.Serve(servePath(), device.Config{
		Interface: endNames[0], Attach: mode,
		Socket:   xdp.Options{Mode: xdp.BindCopy},
		Resolver: knownFrom(0, frame)})
	if err != nil {
		return nil, err
	}
	return &servedPort{server: s}, nil
}

func (p *servedPort) close() { _ = p.server.Close() }

// devicePort is an application's end of that process: role 0's port.
type devicePort struct {
	e       *device.Endpoint
	payload [payloadBytes]byte
	completions
}

func openDevicePort(portOptions) (port, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	e, err := wire.Dial(ctx, servePath(), device.Request{Name: "bench",
		Ports: []uint16{endAddrs[0].Port()}})
	if err != nil {
		return nil, err
	}
	return &devicePort{e: e}, nil
}

func (p *devicePort) close() { _ = p.e.Close() }

func (p *devicePort) put(s uint64, n int) (int, error) {
	k := 0
	for ; k < n; k++ {
		binary.LittleEndian.PutUint64(p.payload[sequenceOff-payloadOff:], s+uint64(k))
		if err := p.e.SendTo(p.payload[:], 0, endAddrs[1], 0); err != nil {
			if errors.Is(err, device.ErrNoSlot) {
				break
			}
			return k, err
		}
		p.sending++
	}
	return k, p.turn()
}

// turn reads what the device process completed.
func (p *devicePort) turn() error { return p.take(p.e.Queue()) }

func (p *devicePort) get(n int) (int, uint64, error) {
	if len(p.arrived) == 0 {
		if err := p.turn(); err != nil || len(p.arrived) == 0 {
			return 0, 0, err
		}
	}
	k := min(n, len(p.arrived))
	var sum uint64
	for i := range p.arrived[:k] {
		loan, err := p.e.View(&p.arrived[i])
		if err != nil {
			return 0, 0, err
		}
		sum += binary.LittleEndian.Uint64(loan.Bytes()[sequenceOff-payloadOff:])
		loan.Release()
		if err := p.e.Release(p.arrived[i]); err != nil {
			return 0, 0, err
		}
	}
	p.arrived = p.arrived[k:]
	return k, sum, nil
}

func (p *devicePort) back() error { return errors.ErrUnsupported }

func (p *devicePort) settle() error { return p.settled(p.turn) }

func (p *devicePort) await() error { return errors.ErrUnsupported }
