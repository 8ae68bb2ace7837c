package bench

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/ring"
)

// Tool is what our processes do. They are told in their role and script what the rivals are told in
// two arguments, and then in lines what to do, which [party.serve] reads itself: nobody else is to
// run meanwhile.
var Tool = stage.Tool{Name: toolName, Play: func(c *stage.Child) error {
	var cpu int
	err := c.Script(&cpu)
	if err == nil {
		err = child(c.Role, cpu)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return err
}}

// party is one of the two processes of our side.
type party struct {
	role   int
	all    []byte         // the shared memory
	mem    []byte         // the area of this round
	mine   *atomic.Uint64 // barrier words
	other  *atomic.Uint64
	ping   *atomic.Uint64
	pong   *atomic.Uint64
	peerFD int            // the other role's eventfd, until a ringer has it
	done   *atomic.Uint64 // role 0 tells that it is through with what it does alone
	took   time.Duration  // what role 0 timed itself, of a round that is not all measured
	made   io.Closer      // what the commands of a row are about; nil before the first
	heap   *heap          // made when a tail command wants one
	row    command        // what these were made for
}

func child(name string, cpu int) error {
	role, err := strconv.Atoi(name)
	if err != nil || role < 0 || role > 1 {
		return fmt.Errorf("bench child: role %q is neither 0 nor 1", name)
	}
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("bench child: pin to processor %d: %w", cpu, err)
	}
	// A producer's share of reader-pays order; where the kernel has no membarrier, commands that
	// need it fail with the reason.
	registered := barrier.Register()
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	mem, err := unix.Mmap(memoryFD, 0, areas*areaBytes, prot, flags)
	if err != nil {
		return fmt.Errorf("bench child: map the shared memory: %w", err)
	}
	p := &party{role: role, all: mem, peerFD: -1}
	defer p.close()
	return p.serve(os.Stdin, os.Stdout, registered)
}

// use makes an area the one of the next round.
func (p *party) use(area int) error {
	if area < 0 || area >= areas {
		return fmt.Errorf("no area %d", area)
	}
	p.mem = p.all[area*areaBytes:][:areaBytes]
	for _, w := range []struct {
		word **atomic.Uint64
		off  uint64
	}{{&p.mine, barrier0}, {&p.other, barrier1}, {&p.ping, probePing}, {&p.pong, probePong},
		{&p.done, word0}} {
		word, err := ring.IndexAt(p.mem, w.off)
		if err != nil {
			return err
		}
		*w.word = word
	}
	if p.role == 1 {
		p.mine, p.other = p.other, p.mine
	}
	return nil
}

// have returns what the commands of a row are about, which the first one makes.
func have[T io.Closer](p *party, make func() (T, error)) (T, error) {
	if p.made == nil {
		made, err := make()
		if err != nil {
			return made, err
		}
		p.made = made
	}
	return p.made.(T), nil
}

// close ends what a row used.
func (p *party) close() {
	if p.made != nil {
		_ = p.made.Close()
	}
	p.made, p.heap = nil, nil
}

// serve runs commands until the parent closes the pipe.
func (p *party) serve(in io.Reader, out io.Writer, registered error) error {
	lines := bufio.NewReader(in)
	for {
		text, err := lines.ReadString('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("bench child: read a command: %w", err)
		}
		name, rest, _ := strings.Cut(text, " ")
		c := named(name)
		var epoch uint64
		var area int
		_, err = fmt.Sscan(rest, &c.batch, &c.pauses, &c.count, &c.start, &epoch, &area,
			&c.settle)
		if err == nil {
			err = p.use(area)
		}
		if err != nil {
			return fmt.Errorf("bench child: command %q: %w", text, err)
		}
		if c.readerPays() && registered != nil {
			return registered
		}
		a, err := p.round(c, epoch)
		if err != nil {
			return fmt.Errorf("bench child: %s: %w", c.name, err)
		}
		fmt.Fprintln(out, a.ns, a.checksum, a.before, a.after, a.share, a.cpuNs, a.allocs)
	}
}

// round does what bench.h does in its main loop: the same barriers, so that a process of ours and
// one in C can also be the two ends of a ring.
func (p *party) round(c command, epoch uint64) (a answer, err error) {
	if p.row.name != c.name || p.row.batch != c.batch {
		p.close() // before either role opens what the next row wants
		p.row = c
	}
	if p.role == 0 {
		if err := p.reset(c.start); err != nil {
			return a, err
		}
	}
	p.barrier(epoch + 1)
	prepare := runners[c.kind]
	if c.verb == "tail" { // messages are timed one by one
		prepare = (*party).tailRunner
	}
	r, err := prepare(p, c)
	if err != nil {
		return a, err
	}
	var m runtime.MemStats
	var allocs uint64
	_, counts := openers[c.kind]
	if counts { // it stops the world, so not while anything is measured
		runtime.ReadMemStats(&m)
		allocs = m.Mallocs
	}
	spinFor(c.settle)
	before := p.probe(epoch + 2)
	p.barrier(epoch + 3)
	p.took = 0
	cpu, whole, began := cpuTime(unix.CLOCK_THREAD_CPUTIME_ID), processTime(), time.Now()
	sum, measured, err := r()
	took := time.Since(began)
	cpu, whole = cpuTime(unix.CLOCK_THREAD_CPUTIME_ID)-cpu, processTime()-whole
	if err != nil {
		return a, err
	}
	if counts { // a net.UDPConn is used by a goroutine of its own
		cpu = min(whole, took)
		runtime.ReadMemStats(&m)
		allocs = m.Mallocs - allocs
	}
	a = answer{checksum: sum, before: before, after: p.probe(epoch + 4),
		share: float64(cpu) / float64(took), cpuNs: uint64(whole), allocs: allocs}
	if measured {
		a.ns = uint64(cmp.Or(p.took, took))
		if c.sleeps() {
			a.ns -= 2 * thinkNs * c.count
		}
	}
	return a, nil
}

// processTime is how long all threads of this process have run.
func processTime() time.Duration { return cpuTime(unix.CLOCK_PROCESS_CPUTIME_ID) }

// cpuTime reads a clock of processor time. It is 0 where the kernel does not say.
func cpuTime(clock int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// spinFor spins. A round begins with it: after a process was idle, the Go runtime's monitor looks
// every 20 µs at what the threads do, which interrupts one of the two processors each time, and
// only after some 20 ms every 10 ms: what is measured is a process that keeps spinning, not one
// that just woke up.
func spinFor(ns time.Duration) {
	for began := time.Now(); time.Since(began) < ns; {
		spin.Pause(1)
	}
}

// barrier waits for the other process. It sleeps while that starts, opens what it needs, or has
// lost its processor.
func (p *party) barrier(epoch uint64) {
	p.mine.Store(epoch)
	for looks := 0; p.other.Load() < epoch; looks++ {
		if looks < barrierLooks {
			spin.Pause(1)
			continue
		}
		nap := unix.NsecToTimespec(barrierNap)
		_ = unix.Nanosleep(&nap, nil)
	}
}

// probe returns the one-way transfer of a cache line in nanoseconds; role 0 measures.
func (p *party) probe(epoch uint64) float64 {
	if p.role == 0 {
		p.ping.Store(0)
		p.pong.Store(0)
	}
	p.barrier(epoch)
	var got [probeBursts]float64
	for i := range got {
		began := time.Now()
		from := uint64(i*probeTrips) + 1
		for k := from; k < from+probeTrips; k++ {
			if p.role == 0 {
				ring.StoreRelease(p.ping, k)
				for p.pong.Load() != k {
				}
			} else {
				for p.ping.Load() != k {
				}
				ring.StoreRelease(p.pong, k)
			}
		}
		got[i] = float64(time.Since(began)) / probeTrips / 2
	}
	if p.role == 1 {
		return 0
	}
	slices.Sort(got[:])
	return got[probeBursts/2]
}

// The memory that the processes map holds many areas, used in turn: which physical pages a ring has
// decides how its lines meet in the caches and made rounds that were else alike differ by a third,
// the same way for as long as the memory was kept. Both rounds of a pair use one area.
//
// The offsets are those within an area. What the rivals use of them is repeated in
// testdata/rivals/bench.h; a test compares the two.
const (
	areaBytes = 1 << 20
	areas     = 32
	barrier0  = 0 // a word per role: the last step of the round that it reached
	barrier1  = 128
	probePing = 256 // the two lines of the placement probe
	probePong = 384
	word0     = 512 // futex words of the rivals
	word1     = 640
	ring0     = 64 << 10 // role 0 writes, role 1 reads
	ring1     = 512 << 10
	ringTail  = 0 // within a ring
	ringHead  = 128
	ringBell  = 256 // the bell's words, only ours
	ringSlots = 4096
	capacity  = 4096
	slotWords = 8
)

// Descriptors that every child inherits.
const (
	memoryFD = 3
	eventFD0 = 4 // wakes role 0
	eventFD1 = 5
	socketFD = 6 // role 0's end of a socket pair, role 1's follows; only our children use it
)

const (
	thinkNs     = 30_000 // before a wake, so that whoever is woken sleeps
	probeTrips  = 64
	probeBursts = 5
	// After so many looks a barrier sleeps so long between two: what is measured never waits a
	// millisecond.
	barrierLooks = 20_000
	barrierNap   = 50_000
)

// slot is what both sides send: one cache line, written and read in place.
type slot [slotWords]uint64

// steps is how many barrier steps a round takes at most.
const steps = 8

// checksum is what adding up the words of count messages from index start gives, modulo 2^64, if
// none was lost, repeated or read before it was written. Message s carries s, 0x402, 64,
// 2^48 + 2^11 s, -1-s, s + 0x7a67, 3 and 2^32 s + 1.
func checksum(start, count uint64) uint64 {
	var indices uint64 // sum of s over the messages
	if count%2 == 0 {
		indices = count / 2 * (2*start + count - 1)
	} else {
		indices = count * (start + (count-1)/2)
	}
	return indices*(1+1<<11+1<<32) + count*(0x402+64+1<<48+0x7a67+3)
}

// fill and sum are the work per message, word for word that of testdata/rivals/slots.h: the eight
// words of a completion are written in place and added up in place.

func fill(span []slot, s uint64) {
	for i := range span {
		w := &span[i]
		w[0] = s
		w[1] = 0x0402
		w[2] = 64
		w[3] = 1<<48 + s<<11
		w[4] = ^s
		w[5] = s + 0x7a67
		w[6] = 3
		w[7] = s<<32 + 1
		s++
	}
}

func sum(span []slot) (total uint64) {
	for i := range span {
		w := &span[i]
		total += ((w[0] + w[1]) + (w[2] + w[3])) + ((w[4] + w[5]) + (w[6] + w[7]))
	}
	return total
}

// fillSlot and sumSlot do for one slot what fill and sum do for a span, without its loop. Those are
// not made of these: inlined there they cost a span a fifth of its rate.
func fillSlot(w *slot, s uint64) {
	w[0] = s
	w[1] = 0x0402
	w[2] = 64
	w[3] = 1<<48 + s<<11
	w[4] = ^s
	w[5] = s + 0x7a67
	w[6] = 3
	w[7] = s<<32 + 1
}

func sumSlot(w *slot) uint64 {
	return ((w[0] + w[1]) + (w[2] + w[3])) + ((w[4] + w[5]) + (w[6] + w[7]))
}
