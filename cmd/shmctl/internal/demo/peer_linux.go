package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/internal/stage"
)

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
	p := &peer{line: l, conn: conn, pace: &pace{f: os.NewFile(fdCreditSocket, "credit")},
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
