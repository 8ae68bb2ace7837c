package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/syscalls"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/xdp"
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
	mine, other port
}

// openers make ports, by the kinds of commands.
var openers = map[string]func(portOptions) (port, error){socketKind: openSocketPort,
	udpConnKind: openUDPConn, endpointKind: openEndpointPort, deviceKind: openDevicePort}

// alone reports whether role 0 does it alone, but for a device process.
func alone(verb string) bool { return verb == "drop" || drains(verb) || verb == "reflect" }

// drains reports whether packets are queued, and then read. That is timed from the first packet on,
// or once as many have been read as a block has.
func drains(verb string) bool { return verb == "drain" || verb == steadyDrain }

func (w *wirePorts) open(role int, c command) (err error) {
	open := openers[c.kind]
	if role == 1 && alone(c.verb) {
		if c.kind == deviceKind {
			w.mine, err = openServer(c.mode())
		}
		return err
	}
	sends := c.verb == "drop" || drains(c.verb)
	o := portOptions{which: role, mode: c.mode(), echoes: role == 1, sends: sends}
	if w.mine, err = open(o); err != nil || !drains(c.verb) {
		return err
	}
	o.which, o.sends = 1, false
	w.other, err = open(o)
	return err
}

func (w *wirePorts) Close() error {
	for _, q := range []port{w.mine, w.other} {
		if q != nil {
			q.close()
		}
	}
	return nil
}

func (p *party) wireRunner(c command) (func() (uint64, bool, error), error) {
	if c.batch < 1 || c.batch > maxBatch {
		return nil, fmt.Errorf("batch of %d, possible are 1 to %d: %w", c.batch, maxBatch, unix.EINVAL)
	}
	w, err := have(p, func() (*wirePorts, error) {
		w := &wirePorts{}
		err := w.open(p.role, c)
		if err != nil {
			_ = w.Close()
		}
		return w, err
	})
	if err != nil {
		return nil, err
	}
	window := 1
	if c.verb == "echo" {
		window = 2 * c.batch
	}
	work := func() (time.Duration, error) {
		return 0, w.echo(c, p.role, window, c.verb == "trip-block")
	}
	switch c.verb {
	case "drop":
		work = func() (time.Duration, error) { return 0, w.drop(c) }
	case "drain", steadyDrain:
		work = func() (time.Duration, error) {
			if c.verb == steadyDrain {
				if _, _, err := w.drainBlock(0, drainBlock, c.batch); err != nil {
					return 0, err
				}
			}
			return w.drain(c)
		}
	}
	if c.kind == udpConnKind {
		locked := work
		work = func() (time.Duration, error) { return unlocked(locked) }
	}
	if alone(c.verb) {
		return p.solo(work), nil
	}
	return func() (uint64, bool, error) {
		_, err := work()
		return 0, p.role == 0, err
	}, nil
}

// unlocked runs f as Go programs run: by a goroutine that no thread is reserved for.
func unlocked(f func() (time.Duration, error)) (took time.Duration, err error) {
	done := make(chan struct{})
	go func() {
		took, err = f()
		close(done)
	}()
	<-done
	return took, err
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

// cable is a pair of interfaces for the two processes of one side.
type cable struct {
	pair *veth.Pair
	drop link.Link // attached to end B, or nil
}

func openCable() (*cable, error) {
	p, err := veth.Open(veth.Config{NameA: endNames[0], NameB: endNames[1]})
	if err != nil {
		return nil, fmt.Errorf("%w, which needs root or its capabilities: %w", ErrNoWire, err)
	}
	return &cable{pair: p}, nil
}

func (w *cable) close() {
	w.pass()
	_ = w.pair.Close()
}

// refuse makes end B drop all packets as early as can be, where they cost the sender least.
func (w *cable) refuse(mode xdp.AttachMode) error {
	return w.put(mode, asm.Instructions{asm.Mov.Imm(asm.R0, 1 /* XDP_DROP */), asm.Return()})
}

// reflect makes end B send every datagram back at once.
func (w *cable) reflect() error {
	code := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 0, asm.Word), // data, and its end
		asm.LoadMem(asm.R7, asm.R1, 4, asm.Word),
		asm.Mov.Imm(asm.R0, 2 /* XDP_PASS */),
		asm.Mov.Reg(asm.R2, asm.R6), asm.Add.Imm(asm.R2, payloadOff),
		asm.JGT.Reg(asm.R2, asm.R7, "exit"),
	}
	swap := func(a, b int16, size asm.Size) {
		code = append(code, asm.LoadMem(asm.R1, asm.R6, a, size), asm.LoadMem(asm.R2, asm.R6, b, size),
			asm.StoreMem(asm.R6, a, asm.R2, size), asm.StoreMem(asm.R6, b, asm.R1, size))
	}
	swap(0, 6, asm.Word) // hardware addresses
	swap(4, 10, asm.Half)
	swap(26, 30, asm.Word) // addresses
	swap(34, 36, asm.Half) // ports
	code = append(code, asm.Mov.Imm(asm.R0, 3 /* XDP_TX */), asm.Return().WithSymbol("exit"))
	return w.put(xdp.AttachNative, code)
}

// put attaches a program to end B.
func (w *cable) put(mode xdp.AttachMode, code asm.Instructions) error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Dual MIT/GPL",
		Instructions: code})
	if err != nil {
		return fmt.Errorf("bench: load the program of the other end: %w", err)
	}
	defer prog.Close()
	flags := link.XDPDriverMode
	if mode == xdp.AttachGeneric {
		flags = link.XDPGenericMode
	}
	err = w.pair.B.Do(func() (err error) {
		w.drop, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: w.pair.B.Index,
			Flags: flags})
		return err
	})
	if err != nil {
		return fmt.Errorf("bench: attach the program of the other end: %w", err)
	}
	return nil
}

func (w *cable) pass() {
	if w.drop != nil {
		_ = w.drop.Close()
		w.drop = nil
	}
}

// files are what the children of a side get beside what all share.
func (w *cable) files() []*os.File { return []*os.File{w.pair.A.NetNS(), w.pair.B.NetNS()} }

// wires makes a pair for each side, once.
func (b *bencher) wires() error {
	for i := range b.wire {
		if b.wire[i] != nil {
			continue
		}
		w, err := openCable()
		if err != nil {
			return err
		}
		b.wire[i] = w
	}
	return nil
}

func (b *bencher) closeWires() {
	for _, w := range b.wire {
		if w != nil {
			w.close()
		}
	}
}

// prepareWires gives both sides of a case what is between their ends.
func (b *bencher) prepareWires(c benchCase) error {
	if !c.wire {
		return nil
	}
	if err := b.wires(); err != nil {
		return err
	}
	for _, w := range b.wire {
		w.pass()
		var err error
		switch {
		case c.reflect:
			err = w.reflect()
		case c.drop != xdp.AttachAuto:
			err = w.refuse(c.drop)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sharedWith is what the children of side i of a case inherit.
func (b *bencher) sharedWith(c benchCase, i int) *shared {
	if !c.wire {
		return b.shared
	}
	s := *b.shared
	s.files = append(s.files[:len(s.files):len(s.files)], b.wire[i].files()...)
	return &s
}

// reportWire fills what only rows about packets have.
func (b *bencher) reportWire(ctx context.Context, c benchCase, r *Row, pairs []pair, count uint64,
	ours, rival *side,
) error {
	if !c.wire {
		return nil
	}
	perPacket := func(f func(pair) float64) *float64 {
		return ptr(quantile(column(pairs, f), 0.5) / float64(c.packets))
	}
	p := &Packets{OursCPU: perPacket(func(p pair) float64 { return p.ours.cpu }),
		OursAllocs: perPacket(func(p pair) float64 { return p.ours.allocs })}
	if rival != nil {
		p.RivalCPU = perPacket(func(p pair) float64 { return p.rival.cpu })
	}
	r.Packets = p
	for s, to := range map[*side]**float64{ours: &p.OursPerCall, rival: &p.RivalPerCall} {
		if s == nil {
			continue
		}
		counter, err := s.countSyscalls(c)
		if err != nil {
			p.CountingError = err.Error()
			return nil
		}
		*to, err = b.perCall(ctx, c, counter, s, count)
		_ = counter.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// countSyscalls counts those of both processes of a side from now on, or of role 0 if it works
// alone.
func (s *side) countSyscalls(c benchCase) (*syscalls.Counter, error) {
	pids := []int{s.duo.procs[0].PID(), s.duo.procs[1].PID()}
	if c.solo {
		pids = pids[:1]
	}
	return syscalls.Processes(pids...)
}

// perCall returns packets per system call. What a process calls for each round, rather than for
// each packet, is the same in a long round and a short one.
func (b *bencher) perCall(ctx context.Context, c benchCase, counter *syscalls.Counter, s *side,
	count uint64,
) (*float64, error) {
	// The Go runtime's own monitor sleeps.
	made := func() uint64 { return counter.All(unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP) }
	var calls [2]uint64
	for i, n := range [2]uint64{count, 3 * count} {
		before := made()
		if _, _, err := b.round(ctx, c, s, n); err != nil {
			return nil, err
		}
		calls[i] = made() - before
	}
	if calls[1] <= calls[0] {
		return nil, nil
	}
	return ptr(float64(2*count) * float64(c.packets) / float64(calls[1]-calls[0])), nil
}
