package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

const deviceQueue = 0

// runDevice owns the AF_XDP socket. It is the only process that does, and the only one that needs a
// privilege.
func runDevice(l *line, c config) (err error) {
	defer os.RemoveAll(filepath.Dir(c.Socket))
	s, err := wire.Serve(c.Socket, device.Config{Interface: c.Ends[0].Name,
		Queues: []uint32{deviceQueue}, Resolver: c.Ends.Ways(0),
		NoObject: true}) // a run leaves nothing behind, killed or not
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var cancel context.CancelCauseFunc
	l.ctx, cancel = context.WithCancelCause(l.ctx)
	go func() { cancel(s.Wait()) }()
	err = l.phases(func(string) (uint64, error) { return 0, nil }, // it serves
		func() *result { return reportOf(s.Server) })
	if err == nil {
		<-l.ctx.Done()
	}
	return err
}

// reportOf sums up what the device process did.
func reportOf(server *device.Server) *result {
	s := server.Stats()
	r := &result{Notes: dropsOf(&s),
		Mode: s.Attached.String(), Queue: deviceQueue, Copy: s.Bound != xdp.BindZeroCopy,
		Wakes: s.Wakes, Publishes: s.Publishes, Syscalls: s.QueueCalls + s.Polls}
	for _, calls := range s.Syscalls {
		r.Syscalls += calls.Send + calls.Receive
	}
	return r
}

// openNetwork makes the wire: two namespaces and the pair between them.
func openNetwork() (*veth.Pair, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("not root: network namespaces and AF_XDP need it")
	}
	p, err := veth.Open(veth.Config{})
	if err != nil {
		return nil, fmt.Errorf("no network namespaces: %w", err)
	}
	// Root of a container may have namespaces and still no raw sockets.
	if err := p.A.Do(tryRawSocket); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("no AF_XDP socket (CAP_NET_RAW is needed): %w", err)
	}
	return p, nil
}

func tryRawSocket() error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	return unix.Close(fd)
}

// socketPair returns two connected sockets that the runtime can wait on.
func socketPair() (pair [2]*os.File, err error) {
	const kind = unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	fds, err := unix.Socketpair(unix.AF_UNIX, kind, 0)
	if err != nil {
		return pair, os.NewSyscallError("socketpair", err)
	}
	for i, fd := range fds {
		pair[i] = os.NewFile(uintptr(fd), "socketpair")
	}
	return pair, nil
}

// window is how many datagrams may be on their way: less than the 256 that a veth queue holds, so
// that a slow machine loses none.
const window = 192

// quiet is how long nothing may arrive before a direction is given up.
const quiet = 30 * time.Second

// peer is the other end of the wire: a plain UDP socket of the kernel, nothing of this library.
type peer struct {
	line  *line
	conn  *net.UDPConn
	pace  *pace
	count uint64
	sent  uint64
	tally *tally
}

func runPeer(l *line, c config) error {
	conn, err := net.DialUDP("udp4",
		net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.Ends[1].Addr, peerPort)),
		net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.Ends[0].Addr, devicePort)))
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetReadBuffer(8 << 20) // the window fits the default too
	p := &peer{line: l, conn: conn, pace: &pace{f: os.NewFile(fdCredit, "credit")},
		count: c.Count, tally: newTally(c.Count)}
	defer p.pace.close()
	stop := context.AfterFunc(l.ctx, func() { _ = conn.Close(); p.pace.close() })
	defer stop()
	return l.phases(func(phase string) (uint64, error) {
		if phase == "rx" {
			err := p.send()
			return p.sent, err
		}
		err := p.receive()
		return p.tally.Arrived, err
	}, func() *result {
		return &result{Notes: interfaceDrops(), RX: &Direction{Sent: p.sent}, TX: p.tally.direction()}
	})
}

// send sends count datagrams, never more than the window ahead of what the application completed.
// The last credits are taken here too, so that the next direction begins with an empty line.
func (p *peer) send() error {
	arrived := make(chan struct{}, 1)
	go p.pace.follow(p.count, func() {
		select {
		case arrived <- struct{}{}:
		default:
		}
	})
	buf := make([]byte, wire.PayloadMaxBytes)
	patience := time.NewTimer(quiet)
	defer patience.Stop()
	for {
		done := p.pace.heard.Load()
		switch {
		case p.sent < p.count && p.sent-done < window:
			if _, err := p.conn.Write(buf[:wire.Put(buf, p.sent)]); err != nil {
				return err
			}
			p.sent++
			continue
		case done >= p.count:
			return nil
		}
		patience.Reset(quiet)
		select {
		case <-arrived:
		case <-patience.C:
			if p.sent == p.count {
				return nil // what is missing is lost: the application reports it
			}
			return fmt.Errorf("no credit for %v after %d datagrams: %d were completed", quiet, p.sent,
				done)
		case <-p.line.ctx.Done():
			return stage.ErrGone
		}
	}
}

// receive verifies datagrams and tells the application how many arrived.
func (p *peer) receive() error {
	buf := make([]byte, 2*wire.PayloadMaxBytes)
	for got := uint64(1); p.tally.Arrived < p.count; got++ {
		if err := p.conn.SetReadDeadline(time.Now().Add(quiet)); err != nil {
			return err
		}
		n, err := p.conn.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil // what is missing is lost, and reported as such
		}
		if err != nil {
			return err
		}
		p.tally.add(buf[:n])
		if err := p.pace.tell(got, p.count); err != nil {
			return err
		}
	}
	return nil
}
