package bench

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/spin"
)

// What the processes do with packets, word for word that of testdata/rivals/packets.h.

// Layout of what is sent: a datagram of IPv4 without options in a frame of the smallest size.
const (
	frameBytes   = 64
	payloadOff   = 42
	payloadBytes = frameBytes - payloadOff
	sequenceOff  = 48 // within the frame
	checksumOff  = 40
	drainBlock   = 1024
	maxBatch     = 64
	netnsFD      = 8 // that of end A, end B's follows
	packetWait   = 5 * time.Second
)

// A port moves batches of packets at one end of the wire.
type port interface {
	// put sends up to n packets with sequence numbers from s on and returns how many it took.
	put(s uint64, n int) (int, error)
	// get takes up to n packets and returns how many, and the sum of their numbers.
	get(n int) (got int, sum uint64, err error)
	// back sends the packets of the last get to where they came from.
	back() error
	// settle returns when all is sent.
	settle() error
	// await blocks until there may be a packet.
	await() error
	close()
}

var errLost = errors.New("no packet for long: one was lost")

// wirePorts are the ports of this process. They stay open for all rounds of a row.
type wirePorts struct {
	command     string
	mine, other port
}

// openers make ports, by the prefixes of commands.
var openers = map[string]func(portOptions) (port, error){socketPrefix: openSocketPort,
	udpConnPrefix: openUDPConn, endpointPrefix: openEndpointPort, devicePrefix: openDevicePort}

// splitPrefix takes the kind of port off a command.
func splitPrefix(command string) (prefix, name string) {
	prefix, name, _ = strings.Cut(command, "-")
	return prefix + "-", name
}

func isWire(command string) bool {
	prefix, _ := splitPrefix(command)
	return openers[prefix] != nil
}

// alone reports whether role 0 does it alone, but for a device process.
func alone(verb string) bool { return verb == "drop" || drains(verb) || verb == "reflect" }

// drains reports whether packets are queued, and then read. That is timed from the first packet on,
// or once as many have been read as a block has.
func drains(verb string) bool { return verb == "drain" || verb == steadyDrain }

func (p *party) openPorts(c command) (err error) {
	if p.ports != nil && p.ports.command == c.name {
		return nil
	}
	p.closePorts()
	p.ports = &wirePorts{command: c.name}
	prefix, name := splitPrefix(c.name)
	open := openers[prefix]
	verb, mode := splitMode(name)
	if p.role == 1 && alone(verb) {
		if prefix == devicePrefix {
			p.ports.mine, err = openServer(mode)
		}
		return err
	}
	sends := verb == "drop" || drains(verb)
	o := portOptions{which: p.role, mode: mode, echoes: p.role == 1, sends: sends}
	if p.ports.mine, err = open(o); err != nil || !drains(verb) {
		return err
	}
	o.which, o.sends = 1, false
	p.ports.other, err = open(o)
	return err
}

func (p *party) closePorts() {
	if p.ports == nil {
		return
	}
	for _, q := range []port{p.ports.mine, p.ports.other} {
		if q != nil {
			q.close()
		}
	}
	p.ports = nil
}

func (p *party) wireRunner(c command) (func() (uint64, bool, error), error) {
	if c.batch < 1 || c.batch > maxBatch {
		return nil, fmt.Errorf("batch of %d, possible are 1 to %d: %w", c.batch, maxBatch, unix.EINVAL)
	}
	if err := p.openPorts(c); err != nil {
		return nil, err
	}
	prefix, name := splitPrefix(c.name)
	verb, _ := splitMode(name)
	if alone(verb) && p.role == 1 {
		return p.sleepOut, nil
	}
	w, window := p.ports, 1
	if verb == "echo" {
		window = 2 * c.batch
	}
	work := func() error { return w.echo(c, p.role, window, verb == "trip-block") }
	switch verb {
	case "drop":
		work = func() error { return w.drop(c) }
	case "drain", steadyDrain:
		work = func() (err error) {
			if verb == steadyDrain {
				if _, _, err = w.drainBlock(0, drainBlock, c.batch); err != nil {
					return err
				}
			}
			p.took, err = w.drain(c)
			return err
		}
	}
	return func() (uint64, bool, error) {
		if alone(verb) {
			defer p.done.Store(soloDone)
		}
		if prefix == udpConnPrefix {
			return 0, p.role == 0, unlocked(work)
		}
		return 0, p.role == 0, work()
	}, nil
}

// unlocked runs f as Go programs run: by a goroutine that no thread is reserved for.
func unlocked(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return <-done
}

func putAll(q port, s uint64, n, batch int) error {
	for n > 0 {
		k, err := q.put(s, min(n, batch))
		if err != nil {
			return err
		}
		s += uint64(k)
		n -= k
	}
	return nil
}

func (w *wirePorts) drop(c command) error {
	if err := putAll(w.mine, 0, int(c.count), c.batch); err != nil {
		return err
	}
	return w.mine.settle()
}

// drain times the reads of packets that were queued before, and nothing else.
func (w *wirePorts) drain(c command) (took time.Duration, err error) {
	var sum uint64
	for s := uint64(0); s < c.count; s += drainBlock {
		t, part, err := w.drainBlock(s, min(c.count-s, drainBlock), c.batch)
		if err != nil {
			return 0, err
		}
		took += t
		sum += part
	}
	return took, c.verify(sum)
}

// drainBlock queues n packets from number s on, and times the reads of them.
func (w *wirePorts) drainBlock(s, n uint64, batch int) (took time.Duration, sum uint64, err error) {
	if err = putAll(w.mine, s, int(n), maxBatch); err == nil {
		err = w.mine.settle()
	}
	var patience lost
	began := time.Now()
	for got := uint64(0); got < n && err == nil; {
		var k int
		var part uint64
		k, part, err = w.other.get(batch)
		sum += part
		got += uint64(k)
		if k == 0 && err == nil {
			err = patience.wait()
		}
	}
	return time.Since(began), sum, err
}

// echo keeps up to window packets under way, which role 1 sends back.
func (w *wirePorts) echo(c command, role, window int, block bool) error {
	var sent, got, sum uint64
	var patience lost
	var empty uint
	batch := uint64(c.batch)
	for got < c.count {
		if role == 0 && sent < c.count && sent-got+batch <= uint64(window) {
			n := min(c.count-sent, batch)
			if err := putAll(w.mine, sent, int(n), c.batch); err != nil {
				return err
			}
			sent += n
		}
		k, part, err := w.mine.get(c.batch)
		if err != nil {
			return err
		}
		got += uint64(k)
		sum += part
		switch {
		case k > 0:
			patience.since = time.Time{}
			if role == 1 {
				err = w.mine.back()
			}
		case block:
			err = w.mine.await()
		default:
			spin.Pause(c.pauses)
			if empty++; empty%4096 == 0 {
				err = patience.wait()
			}
		}
		if err != nil {
			return err
		}
	}
	if err := w.mine.settle(); err != nil {
		return err
	}
	return c.verify(sum)
}

// verify checks that every packet of a round came once.
func (c command) verify(sum uint64) error {
	want := c.count * (c.count - 1) / 2
	if sum != want {
		return fmt.Errorf("sequence numbers of %d packets add up to %d, not %d", c.count, sum, want)
	}
	return nil
}

// lost gives up when nothing has arrived for long.
type lost struct{ since time.Time }

func (l *lost) wait() error {
	now := time.Now()
	if l.since.IsZero() {
		l.since = now
	}
	if now.Sub(l.since) > packetWait {
		return errLost
	}
	return nil
}
