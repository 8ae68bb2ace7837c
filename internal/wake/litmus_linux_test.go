package wake

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/ring"
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
	parent        int  // of a child: they end together
	waited        bool // the other side kept this one waiting in this round
	rounds, found uint64
	// together counts the rounds in which neither side kept the other waiting: elsewhere one of
	// them did not run, or had only begun to, and little can be reordered.
	together uint64
	took     time.Duration
}

const (
	litmusLanes = 8
	litmusReady = 1 // meetings are counted from 2 on
	pauseEvery  = 4096
	// yieldEvery is some hundred microseconds of spins: whoever yields at once, while the other
	// side waits for its CPU, hardly ever runs when that one does.
	yieldEvery = 1 << 18
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
		l.waited = l.waited || spins == 256
		if spins%yieldEvery != 0 {
			continue
		}
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
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
// It is for runs alone, and for what else would not be seen: tests of other packages have to wait.
func hurry(needed bool) (stop func()) {
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil || !needed {
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

// until says when a run is at its end: when what is forbidden was seen finds times or so many
// rounds ran together; after limit also with least of either; and at the deadline.
type until struct {
	finds, rounds           uint64
	leastFinds, leastRounds uint64
	limit, deadline         time.Duration
}

func (u *until) over(l *litmusRig, begin time.Time) bool {
	if l.found >= u.finds || l.together >= u.rounds {
		return true
	}
	if l.rounds%64 != 0 || time.Since(begin) < u.limit {
		return false
	}
	return l.found >= u.leastFinds || l.together >= u.leastRounds
}

func (test *litmus) run(t *testing.T, index int, u until, inHurry bool) *litmusRig {
	t.Helper()
	reader, writer, all := twoCPUs(t)
	q, file := sharedQueue(t, litmusLanes)
	for lane := 1; lane < litmusLanes; lane++ {
		clear(q.lane(lane))
	}
	l := newLitmusRig(q, 0)
	cmd := command(t, "litmus", file, litmusLanes, ring.SeqCst, fmt.Sprintf("LITMUS=%d", index),
		fmt.Sprintf("LITMUS_CPU=%d", writer))
	if inHurry {
		cmd.Env = append(cmd.Env, "LITMUS_HURRY=1")
	}
	shmtest.Must(t, cmd.Start())
	for begin := time.Now(); l.theirs.Load() == 0 && time.Since(begin) < time.Minute; {
		time.Sleep(time.Millisecond) // it is being started
	}
	begin := time.Now()
	l.deadline = begin.Add(u.deadline)
	pin(reader)
	calm := hurry(inHurry)
	for round := uint64(1); !u.over(l, begin); round++ {
		if test.between != nil {
			test.between(l, round)
		}
		if l.waited = false; !l.meet(2 * round) {
			break
		}
		saw := test.reader(l, round)
		if !l.meet(2*round + 1) {
			break
		}
		l.rounds = round
		if !l.waited {
			l.together++
		}
		if test.forbidden(l, l.saw.Load(), saw, round) {
			l.found++
		}
	}
	l.took = time.Since(begin)
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

const (
	enough = 20_000_000 // rounds together that show every mutant
	// telling of them show it as well, were it not for other programs: hundred times what the
	// rarest needed, see testdata/reports/litmus.md.
	telling = 2_000_000
	least   = 15_000
	times   = 10 // as often as a mutant needed to be seen, the sound form has to show nothing
)

// litmusSpare is what the tests have in all beyond the limit of each, for a machine that hardly
// ever lets two processes run at once.
var litmusSpare = time.Minute

// seen runs a test until it has shown enough. Where other programs keep the two sides from running
// at once, it runs again, in a hurry if that is allowed, and with the time that is spare.
func (test *litmus) seen(t *testing.T, index int, u until,
	enough func(*litmusRig) bool) *litmusRig {
	t.Helper()
	u.deadline = u.limit
	if l := test.run(t, index, u, *litmusLong); enough(l) {
		return l
	}
	u.deadline += litmusSpare
	l := test.run(t, index, u, true)
	litmusSpare -= max(0, min(litmusSpare, l.took-u.limit))
	return l
}

// shown runs a mutant until it was seen, and returns how that went.
func (test *litmus) shown(t *testing.T, index int, finds uint64, limit time.Duration) *litmusRig {
	t.Helper()
	u := until{finds: finds, rounds: enough, leastFinds: 1, leastRounds: enough, limit: limit}
	return test.seen(t, index, u,
		func(l *litmusRig) bool { return l.found > 0 || l.together >= telling })
}

// sound runs what the library does until it is known not to do what its mutants do, of which the
// slowest needs so many rounds together.
func (test *litmus) sound(t *testing.T, index int, needed uint64, limit time.Duration) *litmusRig {
	t.Helper()
	u := until{finds: 1, leastFinds: 1, rounds: max(times*needed, least),
		leastRounds: times * needed / 2, limit: limit}
	if test.barrier { // each takes its time, on a busy machine a millisecond
		u.rounds, u.leastRounds = max(times*needed, least/3), 2*needed
	}
	return test.seen(t, index, u,
		func(l *litmusRig) bool { return l.found > 0 || l.together >= needed })
}

// tooFew says how little was seen, because other programs kept the two sides from running at once.
// Whoever asked for a long run gave it the processors: there that is a failure.
func tooFew(t *testing.T, l *litmusRig) {
	t.Helper()
	if *litmusLong {
		t.Fatalf("%d rounds together of %d tell nothing", l.together, l.rounds)
	}
	t.Logf("%d rounds together of %d: too few to tell", l.together, l.rounds)
}

// TestLitmus runs each mutant until it was seen several times, and what the library does ten times
// as long as the slowest of its mutants took for each, less where a machine is too busy for that.
// A mutant that is not seen fails the test, also one that only the processor reorders. Where other
// programs keep the two processes from running at once all the time, and this user may not hurry,
// nothing can be reordered: there only what is forbidden fails, and the log says how little was
// seen. With -litmus.long that is a failure too.
func TestLitmus(t *testing.T) {
	shmtest.Long(t)
	if shmtest.Race {
		t.Skip("the race detector makes every access a call of its own: other code is under test")
	}
	finds, limit := uint64(3), 3*time.Second
	if *litmusLong {
		finds, limit = 100, 20*time.Second
	}
	needed, after := uint64(0), false
	for i, test := range litmusTests() {
		t.Run(test.name, func(t *testing.T) {
			if test.barrier {
				shmtest.Require(t, "membarrier", barrier.Register())
			}
			if !test.mutant {
				after = true
				l := test.sound(t, i, needed, limit)
				if l.found > 0 {
					t.Fatalf("what is forbidden was seen in round %d", l.rounds)
				}
				t.Logf("never in %d rounds, %d together, of which a mutant needed %d",
					l.rounds, l.together, needed)
				if needed == 0 || l.together < needed {
					tooFew(t, l)
				}
				return
			}
			if after { // what comes next has mutants of its own
				needed, after = 0, false
			}
			l := test.shown(t, i, finds, limit)
			t.Logf("forbidden %d times in %d rounds, %d together, in %v", l.found, l.rounds,
				l.together, l.took.Round(time.Millisecond))
			if l.found == 0 && l.together < telling {
				tooFew(t, l)
				return
			}
			if l.found == 0 {
				t.Fatal("this mutant was not seen, so its sound form proves nothing")
			}
			needed = max(needed, l.together/l.found)
		})
	}
}

var litmusReport = flag.Int("litmus.report", 0,
	"run each mutant so often, and write testdata/reports/litmus.md")

const litmusHead = `# Litmus tests: how soon their mutants show themselves

Made by "go test ./internal/wake -run TestLitmusReport -litmus.report %d" on
%s.

Two processes, each on a CPU of its own, run the two sides of a test at about the same moment,
over and over. A mutant lacks a barrier, or has two steps in the wrong order. Each of its runs,
with processes of its own, ended when what is forbidden was seen, or after three seconds. A round
counts as one together if neither side had to wait for the other; where other programs use the
CPUs few of them do.

TestLitmus, which runs with the other tests, fails if a mutant is not seen in a minute that such
programs left some seconds of, and runs what the library does ten times as many rounds together as
the slowest of its mutants needed for each time; twice, where a barrier makes a round slow. The
table is of longer runs of that: a hundred times, or twenty seconds.

Marked with "order" are tests of two stores, or of a load and a store. amd64 does not reorder
those: what is seen there is that the compiler keeps their order, and their mutants are reordered
in the program. The others are stores with a later load of another word, which amd64 does reorder:
their mutants are plain stores where a barrier has to be.

| test | runs | seen in | rounds together, for each time | most in a run | longest run | never in |
|---|---|---|---|---|---|---|
`

// TestLitmusReport measures what the bounds of TestLitmus rest on.
func TestLitmusReport(t *testing.T) {
	if *litmusReport == 0 || shmtest.Race {
		t.Skip("it takes minutes, and asserts no more than TestLitmus: see -litmus.report")
	}
	order := len(litmusTests()) - len(orderTests())
	var b strings.Builder
	needed, after := uint64(0), false
	for i, test := range litmusTests() {
		if test.barrier {
			shmtest.Require(t, "membarrier", barrier.Register())
		}
		name := test.name
		if i >= order {
			name += " (order)"
		}
		if !test.mutant {
			after = true
			l := test.run(t, i, until{finds: 1, leastFinds: 1, rounds: 100 * max(needed, least/10),
				limit: 20 * time.Second, deadline: 20 * time.Second}, *litmusLong)
			if l.found > 0 {
				t.Errorf("%s: what is forbidden was seen in round %d", name, l.rounds)
			}
			fmt.Fprintf(&b, "| %s | 1 | %d | | | %v | %d |\n", name, l.found, short(l.took),
				l.together)
			continue
		}
		if after {
			needed, after = 0, false
		}
		var together []uint64
		seen, all, longest := 0, uint64(0), time.Duration(0)
		for range *litmusReport {
			l := test.run(t, i, until{finds: 1, leastFinds: 1, rounds: enough,
				limit: 3 * time.Second, deadline: 3 * time.Second}, *litmusLong)
			seen += int(l.found)
			all += l.together
			together = append(together, l.together)
			longest = max(longest, l.took)
		}
		each := all / max(uint64(seen), 1)
		needed = max(needed, each)
		fmt.Fprintf(&b, "| mutant: %s | %d | %d | %d | %d | %v | |\n", name, *litmusReport, seen,
			each, slices.Max(together), short(longest))
	}
	text := fmt.Sprintf(litmusHead, *litmusReport, stage.Here()) + b.String()
	shmtest.Must(t, os.WriteFile("../../testdata/reports/litmus.md", []byte(text), 0o644))
}

func short(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
