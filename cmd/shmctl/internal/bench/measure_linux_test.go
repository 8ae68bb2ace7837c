package bench

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/testdata"
	"github.com/shmring/shmring/xdp"
)

// needTwo skips where the bench itself refuses to run.
func needTwo(t *testing.T) {
	t.Helper()
	_, err := processors([2]int{})
	shmtest.Require(t, "cpus", err)
}

// compiled has each rival compiled once for all tests.
var compiled = sync.OnceValues(func() (*toolchain, error) {
	tools, err := newToolchain("cc")
	if err != nil {
		return nil, err
	}
	scratch, err := shmtest.Scratch()
	if err != nil {
		return nil, err
	}
	made := tools.dir
	defer tools.close() // of the former place
	tools.dir = filepath.Join(scratch, "rivals")
	return tools, os.Rename(made, tools.dir)
})

func needCompiler(t *testing.T) *toolchain {
	t.Helper()
	tools, err := compiled()
	if errors.Is(err, ErrNoCompiler) {
		shmtest.Require(t, "cc", err)
	}
	shmtest.Must(t, err)
	return tools
}

// short is enough for every contender to run and for its row to have all figures.
func short(rivals *toolchain) Options {
	return Options{Pairs: 2, RoundTime: 20 * time.Microsecond, Batches: []int{32}, hurried: true,
		rivals: rivals}
}

func needLibfabric(t *testing.T, tools *toolchain) {
	t.Helper()
	if _, err := tools.build(t.Context(), libfabricSource); errors.Is(err, ErrNoLibrary) {
		shmtest.Require(t, "libfabric", err)
	} else if err != nil {
		t.Fatal(err)
	}
}

func benchOf(t *testing.T, name string) Bench {
	t.Helper()
	for _, b := range Benches {
		if b.Name == name {
			return b
		}
	}
	t.Fatalf("no bench %q", name)
	return Bench{}
}

var full = flag.Bool("bench.full", false, "measure every case with every rival and batch")

// crowd is how many writers or queues are enough.
const crowd = 8

// distinct leaves the cases in which some process is told what none was told before. Of batches a
// random one is measured, and small crowds. With -bench.full it leaves all as they are.
func distinct(cases []benchCase) (kept []benchCase) {
	if *full {
		return cases
	}
	told := map[string]bool{}
	for _, i := range rand.Perm(len(cases)) {
		c := cases[i]
		switch ours := named(c.ours); {
		case ours.kind == scaleKind:
			c.batch = min(c.batch, crowd)
		case ours.mode() == xdp.AttachGeneric && ours.verb != "echo":
			continue // the other programs are those of echo
		}
		ours, rival := "ours "+c.ours, cmp.Or(c.source, "ours")+" "+c.rival
		if c.stagger {
			ours += " staggered"
		}
		if !told[ours] || !told[rival] {
			kept = append(kept, c)
		}
		told[ours], told[rival] = true, true
	}
	return kept
}

// Each bench measures its cases, tells how far it is, and leaves nothing behind. Packets come
// through both ways with every kind of socket, and each one once, or a child would have said so.
func TestMeasuresEveryCase(t *testing.T) {
	shmtest.Long(t)
	needTwo(t)
	o := short(needCompiler(t))
	o.Pairs = 1
	// Beside this directory bench makes its own, where other runs on this machine do not.
	t.Setenv(shm.EnvDir, filepath.Join(shm.DefaultPath(), "inner"))
	for _, b := range Benches {
		t.Run(b.Name, func(t *testing.T) {
			switch b.Name {
			case "cq", "fabric":
				needLibfabric(t, o.rivals)
			case "xdp":
				needWire(t)
			}
			var told []Row
			o.Progress = func(p Progress) {
				if p.Pair == p.Pairs {
					told = append(told, Row{Case: p.Case})
				}
			}
			cases := distinct(b.cases(o))
			rows := shmtest.Got(measure(t.Context(), b.options(o), cases)).Or(t)
			var want []string
			for _, c := range cases {
				want = append(want, c.name)
			}
			if all := strings.Join(want, " "); names(rows) != all || names(told) != all {
				t.Errorf("rows %q, progress %q, want %q", names(rows), names(told), all)
			}
			for _, r := range rows {
				checkRow(t, r, o.Pairs)
				if p := r.Packets; (b.Name == "xdp") != (p != nil && p.OursCPU != nil && p.RivalCPU != nil) {
					t.Errorf("%s: %+v", r.Case, p)
				} else if p != nil && p.CountingError != "" {
					t.Logf("%s: %s", r.Case, p.CountingError)
				}
			}
		})
	}
	// Nothing of either side is left where queues and endpoints live.
	left, err := filepath.Glob(filepath.Join(filepath.Dir(shm.DefaultPath()), "shmring-run-bench-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func checkRow(t *testing.T, r Row, pairs int) {
	t.Helper()
	if r.Rounds+r.Dropped != pairs {
		t.Errorf("%s: %d pairs counted and %d dropped of %d", r.Case, r.Rounds, r.Dropped, pairs)
	}
	if strings.Contains(r.Note, libraries["rtering"].pkg) { // too large for tests to ask for it
		return
	}
	if r.Rounds > 0 && (*r.Ours <= 0 || *r.Rival <= 0 || *r.Ratio <= 0 || *r.PlacementNs <= 0) {
		t.Errorf("%s: figures are missing: %+v", r.Case, r)
	}
	if r.Tail == nil {
		return
	}
	for name, l := range map[string]*Latencies{"ours": &r.Tail.Ours, "rival": r.Tail.Rival} {
		if l.Messages == 0 || l.P50 <= 0 || l.P50 > l.P99 || l.P99 > l.P9999 || l.P9999 > l.Max {
			t.Errorf("%s, %s: %d messages, half took up to %v, 99%% %v, 99.99%% %v, all %v",
				r.Case, name, l.Messages, l.P50, l.P99, l.P9999, l.Max)
		}
	}
}

// Without libfabric our side is measured all the same, and the row says why it is alone.
func TestWithoutLibraryRatiosAreNull(t *testing.T) {
	needTwo(t)
	b := newTestBencher(t)
	b.o.Pairs, b.o.RoundTime = 1, 200*time.Microsecond
	// As where there are no headers: the rival is of another library.
	b.tools = shmtest.Got(newToolchain("cc")).Or(t)
	defer b.tools.close()
	file := filepath.Join(b.tools.dir, "rivals", libfabricSource+".c")
	text := shmtest.Got(os.ReadFile(file)).Or(t)
	text = bytes.ReplaceAll(text, []byte("<rdma/"), []byte("<nowhere/rdma/"))
	shmtest.Must(t, os.WriteFile(file, text, 0o600))
	c := benchOf(t, "cq").cases(b.o)[0]
	r := shmtest.Got(b.row(t.Context(), c, 0, 1)).Or(t)
	if r.Ours == nil || r.Rival != nil || r.Ratio != nil ||
		!strings.Contains(r.Note, "libfabric-dev") {
		t.Errorf("%+v", r)
	}
}

func TestNoLibrary(t *testing.T) {
	for text, want := range map[string]bool{
		"libfabric.c:20:10: fatal error: rdma/fabric.h: No such file or directory\n": true,
		"libfabric.c:20:10: fatal error: 'rdma/fabric.h' file not found\n":           true,
		"/usr/bin/ld: cannot find -lfabric: No such file or directory\n":             true,
		"libfabric.c:20:10: error: expected ';' before '}' token\n":                  false,
		"ld: undefined reference to `fi_nothing'\n":                                  false,
	} {
		if libraries[libfabricSource].missing(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}

// The rival against itself: if the method favoured a side, this is where it would show. The bounds
// are wide because other tests share the processors.
func TestRivalAgainstItself(t *testing.T) {
	shmtest.Long(t)
	needTwo(t)
	b := newTestBencher(t)
	b.o.RoundTime, b.o.hurried = time.Millisecond, true
	exe, err := b.tools.build(t.Context(), "ring")
	shmtest.Must(t, err)
	c := benchCase{batch: 32, pauses: 64, perSecond: true}
	var sides [2]*side
	for i := range sides {
		d, err := startDuo(b.shared, b.o.CPUs, []string{exe}, []string{exe})
		shmtest.Must(t, err)
		defer d.close()
		sides[i] = &side{duo: d, command: "spsc"}
	}
	count, err := b.calibrate(t.Context(), c, sides[:]...)
	shmtest.Must(t, err)
	var r *Row // the last that was measured whole
	dropped := 0
	for range 5 { // what favours a side does so each time, other programs do not
		var pairs []pair
		for k := range 21 {
			p := shmtest.Got(b.pair(t.Context(), c, sides[0], sides[1], count, k%2 == 1)).Or(t)
			pairs = append(pairs, p)
		}
		var one Row
		if one.report(pairs); one.Rounds < 6 {
			dropped += one.Dropped
			continue
		}
		r = &one
		t.Logf("ratio %.3f, 95%% interval %.3f to %.3f", *r.Ratio, *r.RatioLow, *r.RatioHigh)
		if *r.RatioHigh >= 0.67 && *r.RatioLow <= 1.5 {
			return
		}
	}
	if r == nil {
		t.Skipf("the processors moved during %d pairs", dropped)
	}
	t.Errorf("the same program against itself: ratio in [%v, %v]", *r.RatioLow, *r.RatioHigh)
}

// TestFormer: another build is the rival in each row that it has, once, and says so in the others.
func TestFormer(t *testing.T) {
	needTwo(t)
	self := shmtest.Got(os.Executable()).Or(t)
	for program, alone := range map[string]bool{self: false, "/bin/false": true} {
		o := short(nil)
		o.Before, o.Cases, o.Pairs = program, "trip*", 1
		rows := shmtest.Got(benchOf(t, "cq").Run(t.Context(), o)).Or(t)
		if names(rows) != "trip-line trip" { // batches 1 and 32 of one command
			t.Errorf("%s: rows %q", program, names(rows))
		}
		for _, r := range rows {
			if r.RivalName != Former || strings.Contains(r.Note, "does not measure it") != alone {
				t.Errorf("%s: %+v", program, r)
			}
		}
	}
}

func TestWithoutCompilerRatiosAreNull(t *testing.T) {
	needTwo(t)
	o := short(nil)
	o.Compiler = "none"
	rows := shmtest.Got(benchOf(t, "wake").Run(t.Context(), o)).Or(t)
	for _, r := range rows {
		if r.Ours == nil || r.Rival != nil || r.Ratio != nil || r.Note == "" {
			t.Errorf("%s: %+v", r.Case, r)
		}
		text, err := json.Marshal(r)
		if err != nil || !strings.Contains(string(text), `"ratio":null`) {
			t.Errorf("%s: %s, %v", r.Case, text, err)
		}
	}
}

// A ring of ours and the ring in C have the same layout: either can be either end.
func TestOursAndRivalShareARing(t *testing.T) {
	needTwo(t)
	b := newTestBencher(t)
	exe := shmtest.Got(b.tools.build(t.Context(), "ring")).Or(t)
	var ours, theirs []string = nil, []string{exe}
	for _, batch := range []int{1, 7, 32} {
		for name, argv := range map[string][2][]string{
			"ours to C": {ours, theirs}, "C to ours": {theirs, ours},
		} {
			d := shmtest.Got(startDuo(b.shared, b.o.CPUs, argv[0], argv[1])).Or(t)
			c := benchCase{batch: batch, perSecond: true}
			b.start += 4*capacity - 3 // so that spans break at the end of the ring
			// Without a bell: the rival does not ring it.
			_, _, err := b.round(t.Context(), c, &side{duo: d, command: "spsc-nobell"}, 3*capacity+5)
			d.close()
			if err != nil {
				t.Errorf("%s, batch %d: %v", name, batch, err)
			}
		}
	}
}

func newTestBencher(t *testing.T) *bencher {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	b := &bencher{}
	var err error
	if b.o.CPUs, err = processors([2]int{}); err != nil {
		t.Fatal(err)
	}
	b.tools = needCompiler(t)
	if b.shared, err = newShared(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.shared.close)
	return b
}

func TestDeadChildEndsTheRound(t *testing.T) {
	needTwo(t)
	b := newTestBencher(t)
	d, err := startDuo(b.shared, b.o.CPUs, nil, nil)
	shmtest.Must(t, err)
	defer d.close()
	d.procs[1].Kill()
	s := &side{duo: d, command: "spsc"}
	if _, _, err = b.round(t.Context(), benchCase{batch: 1}, s, 10); err == nil {
		t.Error("a round of one process succeeded")
	}
}

func TestBadProcessors(t *testing.T) {
	if _, err := processors([2]int{0, 1023}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("processors 0 and 1023: %v", err)
	}
	if _, err := processors([2]int{1, 1}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("one processor twice: %v", err)
	}
}

func TestChildRefusesNonsense(t *testing.T) {
	for _, c := range []struct {
		role string
		cpu  int
	}{{"2", 0}, {"x", 0}, {"", 0}, {"0", 1023}} {
		if err := child(c.role, c.cpu); err == nil {
			t.Errorf("bench child %+v: no error", c)
		}
	}
}

// TestHeadersRepeat: the rivals map the same memory and send the same frames, so their headers
// repeat what we say of them.
func TestHeadersRepeat(t *testing.T) {
	for file, numbers := range map[string]map[string]int{
		"bench.h": {
			"AREA_BYTES": areaBytes, "AREAS": areas, "BARRIER_0": barrier0, "BARRIER_1": barrier1,
			"PROBE_PING": probePing, "PROBE_PONG": probePong, "WORD_0": word0, "WORD_1": word1,
			"RING_0": ring0, "RING_1": ring1, "RING_TAIL": ringTail, "RING_HEAD": ringHead,
			"RING_SLOTS": ringSlots, "CAPACITY": capacity, "SLOT_WORDS": slotWords,
			"MEMORY_FD": memoryFD, "EVENT_FD_0": eventFD0, "EVENT_FD_1": eventFD1,
			"THINK_NS": thinkNs,
			"TAIL_0":   tail0, "TAIL_PREEMPT": tailPreempt, "TAIL_LONGEST": tailLongest,
			"TAIL_COUNTS": tailCounts, "TAIL_WORDS": tailWords, "TAIL_SUB_BITS": stage.TimeBits,
			"PROBE_TRIPS": probeTrips, "PROBE_BURSTS": probeBursts,
			"BARRIER_LOOKS": barrierLooks, "BARRIER_NAP": barrierNap,
		},
		"packets.h": {"NETNS_FD": netnsFD, "FRAME_BYTES": frameBytes, "PAYLOAD_OFF": payloadOff,
			"SEQUENCE_OFF": sequenceOff, "DRAIN_BLOCK": drainBlock, "MAX_BATCH": maxBatch,
			"PORT_BASE": int(endAddrs[0].Port())},
	} {
		text := string(shmtest.Got(testdata.Rivals.ReadFile("rivals/" + file)).Or(t))
		for name, want := range numbers {
			m := regexp.MustCompile(`(?m)^#define ` + name + ` (\d+)\b`).FindStringSubmatch(text)
			if m == nil || m[1] != fmt.Sprint(want) {
				t.Errorf("%s: %s has %q, we %d", name, file, m, want)
			}
		}
		for i, name := range endNames {
			if file == "packets.h" && (!strings.Contains(text, `"`+name+`"`) ||
				!strings.Contains(text, `"`+endAddrs[i].Addr().String()+`"`)) {
				t.Errorf("%s does not know %s, %v", file, name, endAddrs[i])
			}
		}
	}
}

func names(rows []Row) string {
	var s []string
	for _, r := range rows {
		s = append(s, r.Case)
	}
	return strings.Join(s, " ")
}

func TestChecksum(t *testing.T) {
	for _, start := range []uint64{0, 7, 1<<32 - 2, math.MaxUint64 - 3} {
		for count := range uint64(9) {
			span := make([]slot, count)
			fill(span, start)
			if got, want := sum(span), checksum(start, count); got != want {
				t.Errorf("%d messages from %d: %d, formula %d", count, start, got, want)
			}
		}
	}
}

// needWire skips where there are no interfaces of our own, or no AF_XDP on them.
func needWire(t *testing.T) {
	t.Helper()
	needTwo(t)
	w, err := openCable()
	shmtest.Require(t, "netns", err)
	defer w.close()
	shmtest.Require(t, "xdp", w.refuse(xdp.AttachNative))
}

// wireCase returns the case of a name that is measured against C.
func wireCase(t *testing.T, name string, batch int) benchCase {
	t.Helper()
	cases := benchOf(t, "xdp").cases(Options{Batches: []int{batch}})
	return cases[slices.IndexFunc(cases, func(c benchCase) bool { return c.name == name })]
}

// TestWireAllocatesNothing: what the runtime allocates for itself does not grow with the packets.
func TestWireAllocatesNothing(t *testing.T) {
	needWire(t)
	b := newTestBencher(t)
	t.Cleanup(b.closeWires)
	for _, name := range shmtest.Some(1, []string{"drop", "drain", "echo"}) {
		t.Run(name, func(t *testing.T) {
			c := wireCase(t, name, 32)
			c.rivalOurs, c.rival = true, c.ours
			shmtest.Must(t, b.prepareWires(c))
			ours, rival, err := b.sides(t.Context(), c)
			shmtest.Must(t, err)
			defer ours.duo.close()
			rival.duo.close()
			var each []float64
			for range 5 {
				_, o, err := b.round(t.Context(), c, ours, 20000)
				shmtest.Must(t, err)
				each = append(each, o.allocs)
			}
			if least := slices.Min(each); least > 0.01 {
				t.Errorf("%v allocations a packet", each)
			}
		})
	}
}

// TestSyscallsAreCounted: one packet at a time takes one call each.
func TestSyscallsAreCounted(t *testing.T) {
	needWire(t)
	b := newTestBencher(t)
	t.Cleanup(b.closeWires)
	c := wireCase(t, "drop", 1)
	c.rivalOurs, c.rival = true, "udpconn-drop"
	shmtest.Must(t, b.prepareWires(c))
	ours, rival, err := b.sides(t.Context(), c)
	shmtest.Must(t, err)
	defer ours.duo.close()
	defer rival.duo.close()
	for _, s := range []*side{ours, rival} {
		counter := shmtest.Have(s.countSyscalls(c)).Where(t, "bpf")
		// The runtime makes some of its own, on a machine that is busy as many as there are packets:
		// then the best of a few rounds counts.
		most := 0.0
		for n := 0; n < 10 && most < 0.5; n++ {
			per := shmtest.Got(b.perCall(t.Context(), c, counter, s, 20000)).Or(t)
			if per == nil {
				t.Fatalf("%s: no calls", s.command)
			}
			most = max(most, *per)
		}
		if most < 0.5 || most > 1.5 {
			t.Errorf("%s: packets a call: %v", s.command, most)
		}
	}
}

// TestLostPacketsEndTheRound: a round never hangs on a packet that does not come.
func TestLostPacketsEndTheRound(t *testing.T) {
	for _, c := range []command{{count: 3}, {count: 4}, {count: 1}} {
		if err := c.verify(c.count * (c.count - 1) / 2); err != nil {
			t.Error(err)
		}
		if c.verify(1000) == nil {
			t.Errorf("%d packets: any sum passes", c.count)
		}
	}
	l := lost{since: time.Now().Add(-2 * packetWait)}
	if l.wait() == nil {
		t.Error("patience never ends")
	}
}
