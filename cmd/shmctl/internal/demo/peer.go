package demo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/stage"
)

// window is how many datagrams may be on their way: less than the 256 that a veth queue holds, so
// that a slow machine loses none.
const window = 192

// quiet is how long nothing may arrive before a direction is given up.
const quiet = 30 * time.Second

// runPeer is the other end of the wire: a plain UDP socket of the kernel, nothing of this library.
func runPeer(l *line, c config) error {
	remote, err := net.ResolveUDPAddr("udp4", c.Local) // the device's end
	if err != nil {
		return err
	}
	local, err := net.ResolveUDPAddr("udp4", c.Remote)
	if err != nil {
		return err
	}
	conn, err := net.DialUDP("udp4", local, remote)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetReadBuffer(8 << 20) // the window fits the default too
	credit := inherited(fdCreditSocket, "credit")
	defer credit.Close()
	stop := context.AfterFunc(l.ctx, func() { _ = conn.Close(); _ = credit.Close() })
	defer stop()
	p := &peer{line: l, conn: conn, credit: credit, count: c.Count, tally: newTally(c.Count)}
	l.send(event{Is: "ready"})
	if err := l.await("rx"); err != nil {
		return err
	}
	if err := p.send(); err != nil {
		return err
	}
	l.send(event{Is: "done", Phase: "rx", Count: p.sent})
	if err := l.await("tx"); err != nil {
		return err
	}
	if err := p.receive(); err != nil {
		return err
	}
	l.send(event{Is: "done", Phase: "tx", Count: p.tally.Arrived})
	if err := l.await("report"); err != nil {
		return err
	}
	l.send(event{Is: "report", Stats: &result{
		Notes: interfaceDrops(),
		RX:    &Direction{Sent: p.sent},
		TX: &Direction{Completed: p.tally.Arrived, Lost: c.Count - p.tally.Arrived,
			Corrupt: p.tally.Corrupt + p.tally.Unexpected, Duplicate: p.tally.Duplicate},
	}})
	return nil
}

type peer struct {
	line   *line
	conn   *net.UDPConn
	credit *os.File
	count  uint64
	sent   uint64
	tally  *tally
}

// send sends count datagrams, never more than the window ahead of what the application completed.
func (p *peer) send() error {
	var credited atomic.Uint64
	arrived := make(chan struct{}, 1)
	go func() { // ends with the descriptor, or with the last credit of this direction
		var b [8]byte
		for credited.Load() < p.count {
			if _, err := readFull(p.credit, b[:]); err != nil {
				return
			}
			credited.Store(binary.LittleEndian.Uint64(b[:]))
			select {
			case arrived <- struct{}{}:
			default:
			}
		}
	}()
	buf := make([]byte, payloadMaxBytes)
	patience := time.NewTimer(quiet)
	defer patience.Stop()
	for p.sent < p.count {
		if p.sent-credited.Load() >= window {
			patience.Reset(quiet)
			select {
			case <-arrived:
			case <-patience.C:
				return fmt.Errorf("no credit for %v after %d datagrams: %d were completed",
					quiet, p.sent, credited.Load())
			case <-p.line.ctx.Done():
				return stage.ErrGone
			}
			continue
		}
		n := makePayload(buf, p.sent)
		if _, err := p.conn.Write(buf[:n]); err != nil {
			return err
		}
		p.sent++
	}
	// The last credits are read here too, so that the next direction begins with an empty line.
	for credited.Load() < p.count {
		patience.Reset(quiet)
		select {
		case <-arrived:
		case <-patience.C:
			return nil // what is missing is lost: the application reports it
		case <-p.line.ctx.Done():
			return stage.ErrGone
		}
	}
	return nil
}

// receive verifies datagrams and tells the application how many arrived.
func (p *peer) receive() error {
	buf := make([]byte, 2*payloadMaxBytes)
	var b [8]byte
	var got, told uint64
	for p.tally.Arrived < p.count {
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
		if got++; got-told >= creditEvery || got == p.count {
			told = got
			binary.LittleEndian.PutUint64(b[:], got)
			if _, err := p.credit.Write(b[:]); err != nil {
				return err
			}
		}
	}
	return nil
}

// creditEvery is after how many datagrams the other side is told.
const creditEvery = 32

func readFull(f *os.File, b []byte) (int, error) {
	for n := 0; n < len(b); {
		k, err := f.Read(b[n:])
		if err != nil {
			return n, err
		}
		n += k
	}
	return len(b), nil
}
