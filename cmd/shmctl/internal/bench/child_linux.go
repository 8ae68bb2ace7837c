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
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/doorbell"
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
	face   *doorbell.Face // made when an eventfd command comes
	peerFD int            // the other role's eventfd
	done   *atomic.Uint64 // role 0 tells that it is through with what it does alone
	took   time.Duration  // what role 0 timed itself, of a round that is not all measured
	queues *queues        // made when a cq command comes
	ports  *wirePorts     // made when a command about packets comes
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
	defer p.closeQueues()
	defer p.closePorts()
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
		var c command
		var epoch uint64
		var area int
		_, err = fmt.Sscan(text, &c.name, &c.batch, &c.pauses, &c.count, &c.start, &epoch, &area)
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
	if p.role == 0 {
		if err := p.reset(c.start); err != nil {
			return a, err
		}
	}
	p.barrier(epoch + 1)
	r, err := p.runner(c)
	if err != nil {
		return a, err
	}
	var m runtime.MemStats
	var allocs uint64
	counts := isWire(c.name)
	if counts { // it stops the world, so not while anything is measured
		runtime.ReadMemStats(&m)
		allocs = m.Mallocs
	}
	spinFor(settleNs)
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

func (p *party) barrier(epoch uint64) {
	p.mine.Store(epoch)
	for p.other.Load() < epoch {
		spin.Pause(1)
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
