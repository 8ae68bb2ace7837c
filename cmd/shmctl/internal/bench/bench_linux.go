package bench

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/shmring/shmring/xdp"
)

const toolName = "bench"

// Options says what to measure and how long. The zero value is what the published figures used.
type Options struct {
	Pairs     int           // pairs of rounds per row; 0: 101, of XDP 31
	RoundTime time.Duration // length of what is measured of one round; 0: 20 ms, of XDP 5 ms
	Batches   []int         // batch sizes of the throughput rows; nil: 1 and 32, of XDP 8 and 64 too
	CPUs      [2]int        // where the two processes run; both 0: the first two allowed
	Compiler  string        // "": cc; "none": measure without rivals
	Cases     string        // pattern of path.Match for the cases to measure; "": all
	Self      bool          // also measure the rival against itself: the error of the method

	// Progress, if not nil, is called now and then from the goroutine that measures.
	Progress func(Progress)
}

// Progress says which pair of rounds of which row is being measured.
type Progress struct {
	Row, Rows   int // Row counts from 0
	Case        string
	Batch       int
	Pair, Pairs int
}

// Row is one line of a bench: one case at one batch size. Times are nanoseconds, and a ratio is
// ours divided by rival: at throughput 1 or more is good, at times 1 or less.
type Row struct {
	Case        string   `json:"case"`
	Batch       int      `json:"batch"`
	Ours        *float64 `json:"ours"`
	Rival       *float64 `json:"rival"`
	RivalName   string   `json:"rival_name"`
	Unit        string   `json:"unit"` // "Mops/s" or "ns"
	Ratio       *float64 `json:"ratio"`
	RatioLow    *float64 `json:"ratio_low"`
	RatioHigh   *float64 `json:"ratio_high"`
	Rounds      int      `json:"rounds"`         // pairs that counted
	Dropped     int      `json:"dropped_rounds"` // pairs that were disturbed
	Spread      *float64 `json:"spread"`         // interquartile range of the ratios, by median
	PlacementNs *float64 `json:"placement_ns"`   // one-way transfer of a line, median of probes
	Note        string   `json:"note,omitempty"` // why something is null

	Tail *Tail `json:"tail,omitempty"` // of rows about single messages

	Packets *Packets `json:"packets,omitempty"` // of rows about packets
}

// Packets is what a row about packets says beside its figure. CPU times are nanoseconds per packet
// of the processes that work, spinning included; an echo counts as two packets. System calls are
// counted by the kernel, in rounds of their own; nil where it refused or where there were none.
type Packets struct {
	OursCPU       *float64 `json:"ours_cpu_ns"`
	RivalCPU      *float64 `json:"rival_cpu_ns"`
	OursPerCall   *float64 `json:"ours_packets_per_syscall"`
	RivalPerCall  *float64 `json:"rival_packets_per_syscall"`
	OursAllocs    *float64 `json:"ours_allocs_per_packet"`
	CountingError string   `json:"counting_error,omitempty"`
}

// Why rows have no rival.
var (
	ErrNoCompiler = errors.New("bench: no C compiler, rivals not measured")
	// ErrNoWire is why rows about packets are not measured at all.
	ErrNoWire    = errors.New("bench: no network namespace can be made")
	ErrNoLibrary = errors.New("bench: libfabric is not installed (libfabric-dev), rival not measured")
)

func (o Options) withDefaults() Options {
	if o.Pairs == 0 {
		o.Pairs = 101
	}
	if o.RoundTime == 0 {
		o.RoundTime = 20 * time.Millisecond
	}
	if o.Batches == nil {
		o.Batches = []int{1, 32}
	}
	if o.Compiler == "" {
		o.Compiler = "cc"
	}
	return o
}

// Ring measures throughput and one-way latency between two processes that spin, against a ring in
// C of the same layout. It needs two processors.
func Ring(ctx context.Context, o Options) ([]Row, error) {
	o = o.withDefaults()
	return measure(ctx, o, ringCases(o))
}

// Queue measures completion queues, event queues and counters: the same calls as libfabric's shm
// provider where its headers and library are installed, the way from post to read between two
// processes, also against a bare cache line, and what Options.Shared and wait objects cost. It
// needs two processors.
func Queue(ctx context.Context, o Options) ([]Row, error) {
	o = o.withDefaults()
	return measure(ctx, o, queueCases(o))
}

// Scale measures what a read, a post and a wait cost with many writers of a queue, or many queues
// of a wait set, against the same with one. It needs two processors.
func Scale(ctx context.Context, o Options) ([]Row, error) {
	o = o.withDefaults()
	return measure(ctx, o, scaleCases())
}

// Tails times single messages between two processes that look all the time, against a ring in C,
// with and without a heap that is busy. It needs two processors.
func Tails(ctx context.Context, o Options) ([]Row, error) {
	if o.Pairs == 0 {
		o.Pairs = tailPairs
	}
	if o.RoundTime == 0 {
		o.RoundTime = tailRound
	}
	o = o.withDefaults()
	return measure(ctx, o, tailCases())
}

// Wake measures the round trip between two processes that sleep for every message, against the raw
// primitive in C. It needs two processors.
func Wake(ctx context.Context, o Options) ([]Row, error) {
	o = o.withDefaults()
	return measure(ctx, o, wakeCases(o))
}

// A benchCase is one row to be measured: what our child and what the rival's child is told to do.
type benchCase struct {
	name      string
	batch     int
	pauses    int    // between two looks at an empty ring, both sides alike
	ours      string // command of our child; "" for a rival against itself
	rival     string // command of the rival's child
	rivalName string
	source    string         // C program, without .c
	perSecond bool           // report millions of messages a second, else nanoseconds
	stagger   bool           // begin a pair of rounds at a random index, else at 0
	sleeps    bool           // the processes do not run all the time
	tail      bool           // each message is timed, and every round counts
	halve     bool           // the command counts round trips, the row reports one way
	solo      bool           // role 0 does it alone, role 1 sleeps
	share     int            // of a round that is measured, 1 in so many; 0 is all of it
	rivalOurs bool           // the rival is another command of our child
	wire      bool           // the processes are the ends of a pair of interfaces
	reflect   bool           // end B sends every packet back, without a process
	packets   int            // that go over the wire for each one that is counted
	drop      xdp.AttachMode // end B drops everything, in this mode, if it is not AttachAuto
}

// How many PAUSE instructions a reader that found nothing waits before it looks again. It is the
// same on both sides, and what suits the C ring best. A few make a message arrive sooner, since
// looking less often leaves the line to the writer: one way took C 222 ns with none, 188 with 1,
// 165 with 2, 145 with 4, 138 with 6, 154 with 8, 209 with 16. Many let the writer get ahead, so
// that the reader takes the line from it less often: at batch 1 C moved 56 million a second with
// none, 46 with 4, 52 with 16, 74 with 64 and 97 with 256, which is 10 us too long to be awake for;
// at batch 32 it makes no difference.
const (
	latencyPauses    = 6
	throughputPauses = 64
)

func ringCases(o Options) []benchCase {
	var cases []benchCase
	for _, ours := range []string{"spsc", "spsc-xchg", "spsc-nobell"} {
		for _, batch := range o.Batches {
			cases = append(cases, benchCase{name: ours, batch: batch, pauses: throughputPauses,
				ours: ours, rival: "spsc", rivalName: "c", source: "ring", perSecond: true})
		}
	}
	for _, batch := range o.Batches {
		// Batches that begin anywhere in a page, and are split at the end of the ring.
		cases = append(cases, benchCase{name: "spsc-stagger", batch: batch, stagger: true,
			pauses: throughputPauses, ours: "spsc", rival: "spsc", rivalName: "c", source: "ring",
			perSecond: true})
	}
	oneway := benchCase{name: "oneway", batch: 1, pauses: latencyPauses, ours: "oneway",
		rival: "oneway", rivalName: "c", source: "ring", halve: true}
	line := oneway
	line.name, line.rival, line.rivalName, line.source = "oneway-line", "line", "cache line",
		"pingpong"
	cases = append(cases, oneway, line)
	return withSelf(o, cases)
}

func wakeCases(o Options) []benchCase {
	return withSelf(o, []benchCase{
		{name: "futex", batch: 1, ours: "futex", rival: "futex", rivalName: "futex",
			source: "futex", sleeps: true},
		{name: "eventfd", batch: 1, ours: "eventfd", rival: "eventfd", rivalName: "eventfd",
			source: "eventfd", sleeps: true},
	})
}

// withSelf adds every distinct rival against itself: what the method reports when nothing differs.
func withSelf(o Options, cases []benchCase) []benchCase {
	if !o.Self {
		return cases
	}
	type key struct {
		rival string
		batch int
	}
	seen := map[key]bool{}
	for _, c := range cases[:len(cases):len(cases)] {
		if k := (key{c.rival, c.batch}); !seen[k] {
			seen[k] = true
			c.name, c.ours = "self-"+c.rival, ""
			cases = append(cases, c)
		}
	}
	return cases
}

// matching leaves the cases whose name matches the pattern, all if it is empty.
func matching(cases []benchCase, pattern string) ([]benchCase, error) {
	if pattern == "" {
		return cases, nil
	}
	var kept []benchCase
	for _, c := range cases {
		ok, err := path.Match(pattern, c.name)
		if err != nil {
			return nil, fmt.Errorf("bench: pattern of cases %q: %w", pattern, err)
		}
		if ok {
			kept = append(kept, c)
		}
	}
	return kept, nil
}

// value turns what a round took into the row's unit.
func (c benchCase) value(ns, count uint64) float64 {
	per := float64(ns) / float64(count)
	switch {
	case c.perSecond:
		return 1e3 / per
	case c.halve:
		return per / 2
	}
	return per
}

func (c benchCase) unit() string {
	if c.perSecond {
		return "Mops/s"
	}
	return "ns"
}

const (
	libfabricSource = "libfabric"
	queuePrefix     = "cq-"     // of our child's commands on whole queues
	goPrefix        = "go-"     // of those on what Go programs would use instead
	fabricPrefix    = "fabric-" // of those on endpoints of package fabric
	readBatch       = 64        // entries a read, in rows about reads of many
	// readShare: filling a queue takes libfabric many times as long as reading it.
	readShare = 16
	// tripPauses is what a polling application should do between two empty reads: without, a
	// processor that runs ahead in a loop of reads has all of it to throw away when the entry comes.
	// The two bare lines pause as much; the one line, which needs it less, does not.
	tripPauses = 2
)

// queueCases are the rows about completion queues and what belongs to them.
func queueCases(o Options) []benchCase {
	const libfabric, tagged = "libfabric", "libfabric-tagged-inject"
	same := func(name string, batch int) benchCase {
		return benchCase{name: name, batch: batch, ours: queuePrefix + name, rival: name,
			rivalName: libfabric, source: libfabricSource, solo: true}
	}
	read := same("read", readBatch)
	read.share = readShare
	cases := []benchCase{same("read-bare", 1), same("read-empty", 1), read, same("eq", 1),
		same("cntr-add", 1), same("cntr-read", 1)}
	for _, batch := range o.Batches {
		cases = append(cases, benchCase{name: "rate", batch: batch, pauses: throughputPauses,
			ours: "cq-rate", rival: "rate", rivalName: tagged, source: libfabricSource,
			perSecond: true})
	}
	trip := benchCase{name: "trip-line", batch: 1, pauses: tripPauses, ours: "cq-trip", rival: "line",
		rivalName: "cache line", source: "pingpong"}
	cases = append(cases, trip)
	trip.name, trip.rival, trip.rivalName = "trip-lines", "lines", "two cache lines"
	cases = append(cases, trip)
	for _, batch := range o.Batches {
		trip.name, trip.batch, trip.rival, trip.rivalName = "trip", batch, "trip", tagged
		trip.source = libfabricSource
		cases = append(cases, trip)
	}
	return append(append(withSelf(o, cases), goCases()...), priceCases()...)
}

// priceCases measure us against ourselves: what an option costs.
func priceCases() []benchCase {
	price := func(command, option, plain string, batch int) benchCase {
		return benchCase{name: command + "+" + option, batch: batch, solo: true, rivalOurs: true,
			ours: queuePrefix + command + "+" + option, rival: queuePrefix + command,
			rivalName: plain}
	}
	shared := price("read", "shared", "ours-unshared", readBatch)
	shared.share = 4
	cases := []benchCase{price("read-empty", "shared", "ours-unshared", 1), shared,
		price("post-read", "shared", "ours-unshared", 1)}
	for _, wait := range []string{"none", "fd", "yield"} {
		cases = append(cases, price("post-read", wait, "ours-unspec", 1))
	}
	for _, wait := range []string{"fd", "yield"} { // round trips of readers that block
		c := price("sread", wait, "ours-unspec", 1)
		c.solo, c.sleeps = false, true
		cases = append(cases, c)
	}
	return cases
}

// Fabric measures endpoints of package fabric with messages of 8 bytes: against libfabric's shm
// provider where it is installed, two bare cache lines, a raw futex and a unix socket. It needs two
// processors.
func Fabric(ctx context.Context, o Options) ([]Row, error) {
	o = o.withDefaults()
	return measure(ctx, o, fabricCases())
}

func fabricCases() []benchCase {
	trip := benchCase{name: "trip", batch: 1, pauses: tripPauses, ours: fabricPrefix + "trip",
		rival: "trip", rivalName: "libfabric-tagged-inject", source: libfabricSource}
	lines := trip
	lines.name, lines.rival, lines.rivalName = "trip-lines", "lines", "two cache lines"
	lines.source = "pingpong"
	rate := trip
	rate.name, rate.ours, rate.rival, rate.perSecond = "rate", fabricPrefix+"rate", "rate", true
	rate.pauses = throughputPauses
	sleep := benchCase{name: "sleep", batch: 1, ours: fabricPrefix + "sleep", rival: "futex",
		rivalName: "futex", source: "futex", sleeps: true}
	socket := sleep
	socket.rival, socket.rivalName, socket.rivalOurs = goPrefix+"unix", goPrefix+"unix", true
	return []benchCase{trip, lines, rate, sleep, socket}
}

// goCases measure us against what a Go program would use instead: a channel in one process, unix
// sockets and pipes between two.
func goCases() []benchCase {
	var cases []benchCase
	for _, c := range []struct{ name, ours, rival string }{
		{"trip", "cq-trip", "chan"}, {"rate", "cq-rate", "chan-rate"},
		{"sread", "cq-sread", "unix"}, {"sread", "cq-sread", "pipe"},
	} {
		cases = append(cases, benchCase{name: c.name, batch: 1, pauses: tripPauses, ours: c.ours,
			rival: goPrefix + c.rival, rivalName: goPrefix + strings.TrimSuffix(c.rival, "-rate"),
			rivalOurs: true, sleeps: true, perSecond: c.name == "rate"})
	}
	return cases
}

// Commands of our child with many writers or queues: as many as the batch says, or one.
const (
	scalePrefix = "scale-"
	scaleOne    = "+one"
)

// scaleCases measure us against ourselves: what many cost over one.
func scaleCases() []benchCase {
	var cases []benchCase
	for _, verb := range []string{"empty", "one", "all", "set"} {
		for _, n := range []int{8, 64, 256} {
			cases = append(cases, benchCase{name: verb, batch: n, solo: true, rivalOurs: true,
				ours: scalePrefix + verb, rival: scalePrefix + verb + scaleOne, rivalName: "ours-one"})
		}
	}
	return cases
}

// tailCases are ping-pong of messages that are timed one by one. A heap is an allocation of 200 MB
// a second in both processes, beside the messages.
func tailCases() []benchCase {
	c := benchCase{name: "ring", batch: 1, pauses: latencyPauses, ours: "tail", rival: "tail",
		rivalName: "c", source: "ring", halve: true, tail: true}
	cases := []benchCase{c}
	c.name, c.ours, c.pauses = "queue", "cq-tail", tripPauses
	cases = append(cases, c)
	c.name, c.ours = "queue-heap", "cq-tail+heap"
	return append(cases, c)
}

// Prefixes of our child's commands that move packets. What follows is what the rivals understand.
const (
	socketPrefix   = "xdp-"
	udpConnPrefix  = "udpconn-"
	endpointPrefix = "endpoint-"
	devicePrefix   = "device-"
)

const (
	genericSuffix = "+generic"
	// steadyDrain is a drain whose reader has read before: what it needs is in the cache.
	steadyDrain = "drain-steady"
	// drainShare: sending takes a hundred times as long as reading from a ring, and from a socket
	// of the kernel's stack a few times.
	drainShare       = 64
	drainSocketShare = 8
	// xdpPairs and xdpRound keep a run to a minute or two; packets take microseconds.
	xdpPairs = 31
	xdpRound = 5 * time.Millisecond
	// socketBatch is that of the rows against rivals that are not AF_XDP.
	socketBatch = 32
)

// XDP measures AF_XDP sockets over pairs of veth interfaces that it makes: sending to a peer that
// drops, reading a full receive ring, echo, and ping-pong, against the same in C on the bare kernel
// interface and against other kinds of sockets. It needs two processors, network namespaces and the
// privileges of AF_XDP.
func XDP(ctx context.Context, o Options) ([]Row, error) {
	if o.Pairs == 0 {
		o.Pairs = xdpPairs
	}
	if o.RoundTime == 0 {
		o.RoundTime = xdpRound
	}
	if o.Batches == nil {
		o.Batches = []int{1, 8, 32, 64}
	}
	o = o.withDefaults()
	return measure(ctx, o, xdpCases(o))
}

// wireCase is a row about packets: name is what it is called and what the rivals are told.
func wireCase(name string, batch int) benchCase {
	c := benchCase{name: name, batch: batch, pauses: tripPauses, ours: socketPrefix + name,
		rival: name, rivalName: "c-xdp", source: "xdp", wire: true, packets: 1}
	verb, mode := splitMode(name)
	switch verb {
	case "drop":
		c.perSecond, c.solo, c.drop = true, true, mode
	case "drain", steadyDrain:
		c.solo, c.share = true, drainShare
	case "echo":
		c.perSecond, c.packets = true, 2
	case "reflect":
		c.solo, c.reflect, c.packets = true, true, 2
	default:
		c.packets = 2
		c.sleeps = verb == "trip-block"
	}
	return c
}

// splitMode takes the mode of the programs off a command.
func splitMode(name string) (verb string, mode xdp.AttachMode) {
	if n := len(name) - len(genericSuffix); n > 0 && name[n:] == genericSuffix {
		return name[:n], xdp.AttachGeneric
	}
	return name, xdp.AttachNative
}

func xdpCases(o Options) []benchCase {
	var cases []benchCase
	for _, verb := range []string{"drop", "echo"} {
		for _, mode := range []string{"", genericSuffix} {
			for _, batch := range o.Batches {
				cases = append(cases, wireCase(verb+mode, batch))
			}
		}
	}
	for _, verb := range []string{"drain", steadyDrain} { // the program is not part of it
		for _, batch := range o.Batches {
			cases = append(cases, wireCase(verb, batch))
		}
	}
	for _, verb := range []string{"trip", "trip-block"} {
		for _, mode := range []string{"", genericSuffix} {
			cases = append(cases, wireCase(verb+mode, 1))
		}
	}
	cases = withSelf(o, append(cases, endpointCases(o)...))
	return append(append(cases, deviceCases()...), socketCases()...)
}

// endpointCases measure a whole endpoint, with its completion queue and its address vector, against
// the same C program, which has neither.
func endpointCases(o Options) []benchCase {
	var cases []benchCase
	add := func(verb string, batch int) {
		c := wireCase(verb, batch)
		c.name, c.ours = endpointPrefix+verb, endpointPrefix+verb
		cases = append(cases, c)
	}
	for _, verb := range []string{"drop", "echo", "drain", steadyDrain} {
		for _, batch := range o.Batches {
			if batch == o.Batches[0] || batch == o.Batches[len(o.Batches)-1] || batch == socketBatch {
				add(verb, batch)
			}
		}
	}
	add("trip", 1)
	add("trip-block", 1)
	return cases
}

// linkedIn is the name of an endpoint as a rival of a device process.
const linkedIn = "linked-in"

// deviceCases are the price of a device process in the middle, with its submission ring, beside the
// endpoint that is linked into the application.
func deviceCases() []benchCase {
	var cases []benchCase
	for _, verb := range []string{"drop", "reflect"} {
		for _, batch := range []int{1, socketBatch} {
			if verb == "reflect" && batch > 1 {
				continue
			}
			c := wireCase(verb, batch)
			c.name, c.ours = devicePrefix+verb, devicePrefix+verb
			c.rivalOurs, c.rival, c.rivalName = true, endpointPrefix+verb, linkedIn
			// Both processes work, and the one that serves sleeps when it finds nothing to do.
			c.solo, c.sleeps = false, true
			cases = append(cases, c)
		}
	}
	return cases
}

// socketCases measure us against the other ways to move packets.
func socketCases() []benchCase {
	var cases []benchCase
	for _, rival := range []struct{ name, source string }{
		{"udp-mmsg", "udp"}, {"af_packet", "afpacket"}, {"go-udpconn", ""},
	} {
		for _, verb := range []string{"drop", "drain", "echo", "trip", "trip-block"} {
			batch := socketBatch
			if verb == "trip" || verb == "trip-block" {
				batch = 1
			}
			c := wireCase(verb, batch)
			c.rivalName, c.source = rival.name, rival.source
			if verb == "drain" {
				c.share = drainSocketShare
			}
			if rival.source == "" {
				if verb == "trip" { // it knows no way but to block
					continue
				}
				c.rivalOurs, c.rival = true, udpConnPrefix+verb
			}
			cases = append(cases, c)
		}
	}
	return cases
}
