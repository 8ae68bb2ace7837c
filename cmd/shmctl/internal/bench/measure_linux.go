package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/scratch"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/testdata"
)

// A side is a program whose two processes wait for commands.
type side struct {
	duo     *duo
	command string
	times   times // of messages that are timed one by one
}

// bencher holds what the rows of one run share.
type bencher struct {
	o      Options
	tools  *toolchain
	why    error // why there are no rivals
	shared *shared
	epoch  uint64    // grows by steps each round, so that no barrier can see an old round
	area   int       // of the next round
	start  uint64    // index at which the rings of the next round begin
	wire   [2]*cable // of ours and of the rival, made when a case is about packets
}

func measure(ctx context.Context, o Options, cases []benchCase) (rows []Row, err error) {
	// The children die with the thread that started them, so it must not go away before them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if o.CPUs, err = processors(o.CPUs); err != nil {
		return nil, err
	}
	b := &bencher{o: o, tools: o.rivals}
	if b.tools == nil {
		if b.tools, b.why = newToolchain(o.Compiler); b.tools != nil {
			defer b.tools.close()
		} else if !errors.Is(b.why, ErrNoCompiler) {
			return nil, b.why
		}
	}
	if b.shared, err = newShared(); err != nil {
		return nil, err
	}
	defer b.shared.close()
	defer b.closeWires()
	for i, c := range cases {
		row, err := b.row(ctx, c, i, len(cases))
		if err != nil {
			return rows, fmt.Errorf("bench: %s, batch %d: %w", c.name, c.batch, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// row measures one case with four fresh processes.
func (b *bencher) row(ctx context.Context, c benchCase, i, n int) (Row, error) {
	r := Row{Case: c.name, Batch: c.batch, RivalName: c.rivalName, Unit: c.unit()}
	tell := func(k int) {
		if b.o.Progress != nil {
			b.o.Progress(Progress{i, n, c.name, c.batch, k, b.o.Pairs})
		}
	}
	tell(0)
	if err := b.prepareWires(c); err != nil {
		return r, err
	}
	ours, rival, err := b.sides(ctx, c)
	if err != nil {
		return r, err
	}
	defer ours.end()
	defer rival.end()
	if b.o.Before != "" { // it may not have the row, or want other words
		if _, _, err := b.round(ctx, c, rival, 1); err != nil {
			r.Note = "the other program does not measure it: " + err.Error()
			return r, nil
		}
	}
	count, err := b.calibrate(ctx, c, ours, rival)
	if err != nil {
		return r, err
	}
	var pairs []pair
	for k := range b.o.Pairs {
		if k%16 == 0 {
			tell(k)
		}
		p, err := b.pair(ctx, c, ours, rival, count, k%2 == 1)
		if err != nil {
			return r, err
		}
		pairs = append(pairs, p)
	}
	if c.wire {
		relativeShares(pairs)
	}
	tell(b.o.Pairs)
	if rival == nil {
		r.Note = b.missing(ctx, c).Error()
		r.reportOurs(pairs)
	} else {
		r.report(pairs)
	}
	if c.tail {
		r.Tail = &Tail{Ours: ours.times.latencies()}
		if rival != nil {
			t := rival.times.latencies()
			r.Tail.Rival = &t
		}
	}
	return r, b.reportWire(ctx, c, &r, pairs, count, ours, rival)
}

// missing says why the case has no rival here, nil if it has one.
func (b *bencher) missing(ctx context.Context, c benchCase) error {
	if c.rivalOurs || b.o.Before != "" {
		return nil
	}
	if b.tools == nil {
		return b.why
	}
	if _, err := b.tools.build(ctx, c.source); errors.Is(err, ErrNoLibrary) {
		return err
	}
	return nil
}

func (b *bencher) sides(ctx context.Context, c benchCase) (ours, rival *side, err error) {
	var theirs []string // none: ours
	alone := b.missing(ctx, c) != nil
	if b.o.Before != "" {
		theirs = Tool.Of(b.o.Before)
	} else if !c.rivalOurs && !alone {
		exe, err := b.tools.build(ctx, c.source)
		if err != nil {
			return nil, nil, err
		}
		theirs = []string{exe}
	}
	ours = &side{command: c.ours}
	if ours.duo, err = startDuo(b.sharedWith(c, 0), b.o.CPUs, nil, nil); err != nil || alone {
		return ours, nil, err
	}
	rival = &side{command: c.rival}
	if rival.duo, err = startDuo(b.sharedWith(c, 1), b.o.CPUs, theirs, theirs); err != nil {
		ours.end()
	}
	return ours, rival, err
}

// end ends its processes; nil has none.
func (s *side) end() {
	if s != nil {
		s.duo.close()
	}
}

// calibrate returns how many messages the slower side handles in a round, having warmed both up.
func (b *bencher) calibrate(ctx context.Context, c benchCase, sides ...*side) (uint64, error) {
	count, want := uint64(200), b.o.RoundTime/time.Duration(max(1, c.share))
	for {
		var slowest time.Duration
		for _, s := range sides {
			if s == nil {
				continue
			}
			ns, _, err := b.round(ctx, c, s, count)
			if err != nil {
				return 0, err
			}
			slowest = max(slowest, time.Duration(ns))
		}
		if slowest >= want/2 {
			return max(1, uint64(float64(count)*float64(want)/float64(slowest))), nil
		}
		// At most 16 times as many: the first rounds of a process are slow.
		count *= uint64(min(max(want/max(slowest, 1), 2), 16))
	}
}

func (b *bencher) pair(ctx context.Context, c benchCase, ours, rival *side, count uint64,
	rivalFirst bool,
) (p pair, err error) {
	// Both rounds of a pair begin at the same index: where batches lie relative to a page shows.
	b.area = (b.area + 1) % areas
	b.start = 0
	if c.stagger {
		b.start = rand.Uint64N(1 << 40)
	}
	order := []*side{ours, rival}
	if rivalFirst {
		order = []*side{rival, ours}
	}
	for _, s := range order {
		if s == nil {
			continue
		}
		ns, o, err := b.round(ctx, c, s, count)
		if err != nil {
			return p, err
		}
		if c.tail {
			if err := b.timesOf(s); err != nil {
				return p, err
			}
		}
		o.value = c.value(ns, count)
		if s == ours {
			p.ours = o
		} else {
			p.rival = o
		}
	}
	return p, nil
}

// round runs one round of a side and checks that every message arrived once and whole.
func (b *bencher) round(ctx context.Context, c benchCase, s *side, count uint64) (
	ns uint64, o outcome, err error,
) {
	b.epoch += steps
	settles := settleTime
	if b.o.hurried {
		settles = 0
	}
	line := fmt.Sprintf("%s %d %d %d %d %d %d %d", s.command, c.batch, c.pauses, count, b.start,
		b.epoch, b.area, settles)
	answers, err := s.duo.run(ctx, line)
	if err != nil {
		return 0, o, err
	}
	o.share = 1
	for role, a := range answers {
		if !c.sleeps && (!c.solo || role == 0) {
			o.share = min(o.share, a.share)
		}
		if !c.solo || role == 0 {
			o.cpu += float64(a.cpuNs) / float64(count)
			o.allocs += float64(a.allocs) / float64(count)
		}
		ns = max(ns, a.ns)
		o.before, o.after = max(o.before, a.before), max(o.after, a.after)
		if want := checksum(b.start, count); a.checksum != 0 && a.checksum != want {
			return 0, o, fmt.Errorf("%s, process %d: checksum of %d messages is %d, not %d: "+
				"messages were lost, repeated or torn", s.command, role, count, a.checksum, want)
		}
	}
	if ns == 0 {
		return 0, o, fmt.Errorf("%s: no process measured the round", s.command)
	}
	return ns, o, nil
}

// processors returns the two processors to run on.
func processors(want [2]int) ([2]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return want, fmt.Errorf("bench: allowed processors: %w", err)
	}
	if want != [2]int{} {
		if want[0] == want[1] || !set.IsSet(want[0]) || !set.IsSet(want[1]) {
			return want, fmt.Errorf("bench: %d and %d are not two processors that this process "+
				"may use: %w", want[0], want[1], unix.EINVAL)
		}
		return want, nil
	}
	n := 0
	for cpu := 0; n < 2 && cpu < 1024; cpu++ {
		if set.IsSet(cpu) {
			want[n] = cpu
			n++
		}
	}
	if n < 2 {
		return want, fmt.Errorf("bench: two processes that spin need two processors, allowed is "+
			"one: %w", errors.ErrUnsupported)
	}
	return want, nil
}

// settleTime is how long both processes of a side spin before a round, see spinFor.
const settleTime = 20 * time.Millisecond

// roundLimit is when a round is given up: thousands of times what one takes.
const roundLimit = 60 * time.Second

// shared is the memory, the two eventfds and the socket pair that all processes of a run share. All
// are anonymous, so nothing is left behind however the run ends; but for the directory in which
// each pair of processes has one for its queues.
type shared struct {
	files  []*os.File
	dir    string
	remove func() // the directory
}

func newShared() (*shared, error) {
	fd, err := unix.MemfdCreate("shmring-bench", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("bench: memfd_create: %w", err)
	}
	s := &shared{files: []*os.File{os.NewFile(uintptr(fd), "shmring-bench")}, remove: func() {}}
	// Beside the default directory: there memory is, and the bench is no queue in it.
	dir, remove, err := scratch.Make(filepath.Dir(shm.DefaultPath()), toolName)
	if err != nil {
		s.close()
		return nil, fmt.Errorf("bench: directory for queues: %w", err)
	}
	s.dir, s.remove = dir, remove
	if err := unix.Fallocate(fd, 0, 0, areas*areaBytes); err != nil {
		s.close()
		return nil, fmt.Errorf("bench: allocate %d bytes: %w", areas*areaBytes, err)
	}
	for range 2 {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("bench: eventfd: %w", err)
		}
		s.files = append(s.files, os.NewFile(uintptr(fd), "eventfd"))
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		s.close()
		return nil, fmt.Errorf("bench: socketpair: %w", err)
	}
	for _, fd := range ends {
		s.files = append(s.files, os.NewFile(uintptr(fd), "socket"))
	}
	return s, nil
}

func (s *shared) close() {
	for _, f := range s.files {
		_ = f.Close()
	}
	s.remove()
}

// answer is what one process says after a round; zero is what it did not measure.
type answer struct {
	ns, checksum  uint64
	before, after float64 // probes
	share         float64 // of the round, during which the process was running
	cpuNs         uint64  // that all threads of the process ran
	allocs        uint64  // of the process, where it is counted
}

// duo is the two processes of a side, role 0 and role 1, each pinned to a processor.
type duo struct {
	procs [2]*stage.Process
	said  [2]chan string // closed at the end of the process
	dir   string         // of their queues
}

// startDuo starts both processes, each with its command line, nil for ours, followed by role and
// processor. The caller's goroutine must be locked to its thread until close.
func startDuo(s *shared, cpus [2]int, programs ...[]string) (*duo, error) {
	dir, err := os.MkdirTemp(s.dir, "side-")
	if err != nil {
		return nil, fmt.Errorf("bench: directory for queues: %w", err)
	}
	d := &duo{dir: dir}
	for role, program := range programs {
		said := make(chan string, 1)
		d.said[role] = said
		d.procs[role], err = stage.Spec{Tool: toolName, Role: strconv.Itoa(role), Script: cpus[role],
			Program: program, Files: s.files, Env: []string{shm.EnvDir + "=" + d.dir},
			Stderr: os.Stderr,
			// A process whose partner died spins: it must not outlive us.
			Attr:  &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
			Hear:  func(line []byte) { said <- string(line) },
			Ended: func() { close(said) }}.Start()
		if err != nil {
			d.close()
			return nil, err
		}
	}
	return d, nil
}

// run gives both processes a command and returns their answers. After an error the duo is of no
// use: one of the two may spin, waiting for the other.
func (d *duo) run(ctx context.Context, command string) (answers [2]answer, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, roundLimit,
		errors.New("a round did not end; is a processor overcommitted or stopped?"))
	defer cancel()
	for role, p := range d.procs {
		if err := p.Tell(command); err != nil {
			return answers, fmt.Errorf("command to process %d: %w", role, err)
		}
	}
	said := d.said
	for range answers {
		var line string
		var role int
		var lives bool
		select {
		case <-ctx.Done():
			return answers, context.Cause(ctx)
		case line, lives = <-said[0]:
		case line, lives = <-said[1]:
			role = 1
		}
		said[role] = nil
		if !lives {
			return answers, fmt.Errorf("process %d ended during a round: %v", role,
				d.procs[role].State())
		}
		a := &answers[role]
		// Programs in C do not say how much they allocate.
		n, err := fmt.Sscan(line, &a.ns, &a.checksum, &a.before, &a.after, &a.share, &a.cpuNs,
			&a.allocs)
		if n < 6 {
			return answers, fmt.Errorf("answer %q of process %d: %w", line, role, err)
		}
	}
	return answers, nil
}

// patience is how long a process may take to clean up. One whose partner died spins instead.
const patience = time.Second

// close ends both processes: libfabric's files go only if it may remove them itself. What does not
// end is killed.
func (d *duo) close() {
	stage.End(patience, d.procs[:]...)
	_ = os.RemoveAll(d.dir)
}

// toolchain compiles rivals into a directory of its own, each once.
type toolchain struct {
	cc     string
	dir    string
	remove func()
}

// newToolchain finds the compiler and makes the directory; its error wraps ErrNoCompiler when there
// is none.
func newToolchain(compiler string) (*toolchain, error) {
	if compiler == "none" {
		return nil, fmt.Errorf("%w: none was asked for", ErrNoCompiler)
	}
	cc, err := exec.LookPath(compiler)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoCompiler, err)
	}
	dir, remove, err := scratch.Make(os.TempDir(), toolName)
	if err != nil {
		return nil, fmt.Errorf("bench: directory for the rivals: %w", err)
	}
	t := &toolchain{cc, dir, remove}
	if err := os.CopyFS(t.dir, testdata.Rivals); err != nil {
		t.close()
		return nil, fmt.Errorf("bench: unpack the rivals: %w", err)
	}
	return t, nil
}

// build returns the path of a compiled rival.
func (t *toolchain) build(ctx context.Context, source string) (string, error) {
	exe := filepath.Join(t.dir, source)
	if _, err := os.Stat(exe); err == nil {
		return exe, nil
	}
	file := filepath.Join(t.dir, "rivals", source+".c")
	lib, flags := libraries[source], []string{"-O2", "-o", exe, file}
	if lib != nil { // what is inlined of it is the user's to optimise
		flags = append([]string{"-O3", "-march=native", "-o", exe, file}, lib.flags...)
	}
	out, err := exec.CommandContext(ctx, t.cc, flags...).CombinedOutput()
	if err != nil && lib.missing(string(out)) {
		return "", fmt.Errorf("%w: install %s", ErrNoLibrary, lib.pkg)
	}
	if err != nil {
		return "", fmt.Errorf("bench: %s %s.c: %w: %s", t.cc, source, err,
			strings.TrimSpace(string(out)))
	}
	return exe, nil
}

// library is what a rival in C stands on.
type library struct {
	pkg    string // of Debian
	header string
	flags  []string
}

// libraries are those of rivals by their source.
var libraries = map[string]*library{
	libfabricSource: {"libfabric-dev", "rdma/fabric.h", []string{"-lfabric"}},
	"rtering": {"libdpdk-dev", "rte_ring.h", []string{"-I/usr/include/dpdk",
		"-I/usr/include/x86_64-linux-gnu/dpdk", "-I/usr/include/aarch64-linux-gnu/dpdk"}},
}

// missing tells a library that is not installed from a rival that does not compile, by what every
// compiler and linker names: the header, or the library.
func (l *library) missing(output string) bool {
	if l == nil {
		return false
	}
	for line := range strings.Lines(output) {
		if strings.Contains(line, l.header) && (strings.Contains(line, "No such file") ||
			strings.Contains(line, "file not found")) || strings.Contains(line, "ld: cannot find -l") {
			return true
		}
	}
	return false
}

func (t *toolchain) close() { t.remove() }
