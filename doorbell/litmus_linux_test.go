package doorbell

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm/shmtest"
	"golang.org/x/sys/unix"
)

func init() { roles["litmus"] = func() { child(childLitmus) } }

// A litmus test is two short sequences of loads and stores that two processes, each on a CPU of its
// own, begin at about the same moment, over and over: whether what they saw together is possible at
// all is what a proof of the protocol rests on. Each has mutants, with a store that is too weak or
// in the wrong place, that must show what is forbidden; then as many rounds without it mean
// something. What amd64 cannot reorder can only fail there by a mutant that the program reorders:
// see litmusTests.
type litmus struct {
	name   string
	mutant bool
	// writer and reader are what a round does; the words hold less than the number of the round
	// when it begins, and what is returned is what the side saw.
	writer, reader func(l *litmusRig, round uint64) uint64
	// between runs in the reader's process while the writer rests, before each round.
	between   func(l *litmusRig, round uint64)
	forbidden func(l *litmusRig, writer, reader, round uint64) bool
	barrier   bool // needs membarrier, of which fewer rounds are run
}

// litmusRig is the memory of both sides. The words lie two cache lines apart.
type litmusRig struct {
	q             *queue
	x, y, z       *ring.Index
	line          []uint64
	met           [2]*ring.Index // how often each side came to where they meet
	saw, over     *ring.Index    // of the writer, and to the writer
	w             *writer        // of a test on the real bell; nil on the reader's side
	r             *reader
	delay         *rand.Rand
	mine, theirs  *ring.Index
	deadline      time.Time
	parent        int // of a child: they end together
	rounds, found uint64
}

const (
	litmusLanes = 8
	litmusReady = 1 // meetings are counted from 2 on
	pauseEvery  = 4096
)

func newLitmusRig(q *queue, side int) *litmusRig {
	word := func(lane, at int) *ring.Index { return must(ring.IndexAt(q.lane(lane), uint64(at))) }
	l := &litmusRig{q: q, x: word(2, 0), y: word(2, 256), z: word(2, 512), saw: word(4, 0),
		over: word(4, 256), met: [2]*ring.Index{word(3, 0), word(3, 256)},
		line: q.slots(5)[:8], delay: rand.New(rand.NewPCG(uint64(side), 3))}
	l.mine, l.theirs = l.met[side], l.met[1-side]
	return l
}

// meet waits until the other side has come here as often as this one, and then a little, so that
// neither is always first. It returns false when the time is up.
func (l *litmusRig) meet(n uint64) bool {
	if n%pauseEvery == 0 {
		time.Sleep(2 * time.Millisecond) // for the rest of the machine, which hurry keeps out
	}
	l.mine.Store(n)
	for spins := 1; l.theirs.Load() < n; spins++ {
		if spins%256 != 0 {
			continue
		}
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // it may wait for this CPU
		if spins%4096 != 0 {
			continue
		}
		if !l.deadline.IsZero() && time.Now().After(l.deadline) {
			return false
		}
		if l.parent != 0 && unix.Getppid() != l.parent {
			os.Exit(1) // or it spins for ever, where hardly anybody else gets the processor
		}
	}
	// Up to some hundred nanoseconds, mostly less: the side that comes last goes on first, by about
	// the time that a line takes from one CPU to the other.
	r := l.delay.Uint32()
	for range r >> 22 >> (r % 11) {
	}
	return true
}

// pin keeps this goroutine on one CPU.
func pin(cpu int) {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	must(0, unix.SchedSetaffinity(0, &set))
}

// hurry lets nobody else run on this goroutine's CPU, if that is allowed: a round counts only if
// both sides run, which is seldom so on a busy machine. What the thread starts is not in a hurry.
// It is for runs alone: tests of other packages would be kept from running as well.
func hurry(wanted bool) (stop func()) {
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil || !wanted {
		return func() {}
	}
	a := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1,
		Flags: unix.SCHED_FLAG_RESET_ON_FORK}
	_ = unix.SchedSetAttr(0, &a, 0)
	return func() { _ = unix.SchedSetAttr(0, before, 0) }
}

// twoCPUs returns two that this process may use.
func twoCPUs(t *testing.T) (a, b int, all unix.CPUSet) {
	t.Helper()
	err := unix.SchedGetaffinity(0, &all)
	var cpus []int
	for i := 0; i < 1024 && len(cpus) < 2; i++ {
		if all.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	if err == nil && len(cpus) < 2 {
		err = errors.New("two processors are needed, or nothing is ever reordered")
	}
	shmtest.Require(t, "cpus", err)
	return cpus[0], cpus[1], all
}

// childLitmus is the writer of a test that the parent names.
func childLitmus(q *queue, _ ring.Order) error {
	pin(int(envInt("LITMUS_CPU")))
	test := litmusTests()[envInt("LITMUS")]
	l := newLitmusRig(q, 1)
	l.parent = unix.Getppid()
	l.mine.Store(litmusReady)
	hurry(os.Getenv("LITMUS_HURRY") != "")
	for round := uint64(1); ; round++ {
		l.meet(2 * round)
		if l.over.Load() != 0 {
			return nil
		}
		l.saw.Store(test.writer(l, round))
		l.meet(2*round + 1)
	}
}

// run goes on until what is forbidden was seen that often, or for so many rounds; at most until
// the deadline.
func (test *litmus) run(t *testing.T, index int, finds, rounds uint64,
	limit time.Duration) *litmusRig {
	t.Helper()
	reader, writer, all := twoCPUs(t)
	q, file := sharedQueue(t, litmusLanes)
	for lane := 1; lane < litmusLanes; lane++ {
		clear(q.lane(lane))
	}
	l := newLitmusRig(q, 0)
	l.deadline = time.Now().Add(limit)
	cmd := command(t, "litmus", file, litmusLanes, ring.SeqCst, fmt.Sprintf("LITMUS=%d", index),
		fmt.Sprintf("LITMUS_CPU=%d", writer))
	if *litmusLong {
		cmd.Env = append(cmd.Env, "LITMUS_HURRY=1")
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for l.theirs.Load() == 0 && time.Now().Before(l.deadline) {
		time.Sleep(time.Millisecond) // it is being started
	}
	pin(reader)
	calm := hurry(*litmusLong)
	for round := uint64(1); round <= rounds && l.found < finds; round++ {
		if test.between != nil {
			test.between(l, round)
		}
		if !l.meet(2 * round) {
			break
		}
		saw := test.reader(l, round)
		if !l.meet(2*round + 1) {
			break
		}
		l.rounds = round
		if test.forbidden(l, l.saw.Load(), saw, round) {
			l.found++
		}
	}
	// It may be in the middle of a round, if this ended by the deadline.
	l.over.Store(1)
	l.mine.Store(1 << 62)
	calm()
	must(0, unix.SchedSetaffinity(0, &all))
	runtime.UnlockOSThread()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the other side: %v", err)
	}
	return l
}

var litmusLong = flag.Bool("litmus.long", false, "see more of each litmus test")

// TestLitmus runs each mutant until it has shown several times what is forbidden, and what the
// library does ten times as long as the slowest of its mutants took. Where other programs keep the
// two processes from running at once a round takes long, and nothing is reordered in it: then the
// time is up first, and the test says how far it came.
func TestLitmus(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes every access a call of its own: other code is under test")
	}
	finds, limit := uint64(3), 3*time.Second
	if *litmusLong {
		finds, limit = 100, 20*time.Second
	}
	const (
		enough = 20_000_000 // rounds that show every mutant
		least  = 30_000
	)
	needed := uint64(0)
	for i, test := range litmusTests() {
		t.Run(test.name, func(t *testing.T) {
			if test.barrier {
				shmtest.Require(t, "membarrier", Register())
			}
			if !test.mutant {
				l := test.run(t, i, 1, max(10*needed, least), limit)
				if l.found > 0 {
					t.Fatalf("what is forbidden was seen in round %d", l.rounds)
				}
				t.Logf("never in %d rounds, of which a mutant needed %d", l.rounds, needed)
				needed = 0
				return
			}
			l := test.run(t, i, finds, enough, limit)
			if l.found == 0 && l.rounds == enough {
				t.Fatalf("%d rounds did not show what this mutant does", l.rounds)
			}
			t.Logf("forbidden %d times in %d rounds", l.found, l.rounds)
			needed = max(needed, l.rounds/max(l.found, 1))
		})
	}
}
