package bench

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
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
	// Before is another build of this program, which is the rival in all rows; "": the usual ones.
	Before string
	// For tests, which want no figures: rounds begin at once, and rivals stay compiled.
	hurried bool
	rivals  *toolchain

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
	ErrNoLibrary = errors.New("bench: the rival is not measured, its library is not here")
)

// Bench is one of those there are.
type Bench struct {
	Name string
	Says string // of its rows, in a report
	kind string // of our child's commands
	// what Options are if nobody says it, where that is not as usual
	pairs   int
	round   time.Duration
	batches []int
}

// Benches are all of them, in the order in which they run. Each needs two processors; xdp also
// network namespaces and the privileges of AF_XDP, or it is ErrNoWire.
var Benches = []Bench{
	{Name: "ring", Says: "One ring between two processes that look all the time."},
	{Name: "wake", Says: "Round trips of two processes that sleep for every message."},
	{Name: "cq", kind: queueKind,
		Says: "Calls of queues and counters, and the way from post to read."},
	{Name: "fabric", kind: fabricKind,
		Says: "Messages of 8 bytes between endpoints of two processes."},
	{Name: "scale", kind: scaleKind, Says: "Many writers of a queue, or many queues of a wait " +
		"set: empty is a read that finds nothing, one a post and read of the same writer each time, " +
		"all of each writer in turn, set a post, wait and read of each queue in turn, set-same of the " +
		"same one."},
	{Name: "tail", Says: "Single messages, one way, of all rounds, whatever else ran.",
		pairs: tailPairs, round: tailRound},
	// Packets take microseconds: this keeps a run to a minute or two.
	{Name: "xdp", kind: socketKind, Says: "Packets over pairs of veth interfaces.", pairs: 31,
		round: 5 * time.Millisecond, batches: []int{1, 8, socketBatch, 64}},
}

// Run measures what belongs to one of them. After an error rows that were measured before are
// returned with it.
func (b Bench) Run(ctx context.Context, o Options) ([]Row, error) {
	if _, err := path.Match(o.Cases, ""); err != nil {
		return nil, err
	}
	o = b.options(o)
	return measure(ctx, o, b.cases(o))
}

// Cases are the names of what it measures with such options, each once.
func (b Bench) Cases(o Options) (names []string) {
	for _, c := range b.cases(b.options(o)) {
		if !slices.Contains(names, c.name) {
			names = append(names, c.name)
		}
	}
	return names
}

// options fills in what nobody said.
func (b Bench) options(o Options) Options {
	o.Pairs = cmp.Or(o.Pairs, b.pairs, 101)
	o.RoundTime = cmp.Or(o.RoundTime, b.round, 20*time.Millisecond)
	o.Compiler = cmp.Or(o.Compiler, "cc")
	for _, batches := range [][]int{b.batches, {1, 32}} {
		if o.Batches == nil {
			o.Batches = batches
		}
	}
	return o
}

// A benchCase is one row to be measured: what our child and what the rival's child is told to do.
type benchCase struct {
	name      string
	batch     int
	pauses    int    // between two looks at an empty ring, both sides alike
	ours      string // command of our child
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

// before leaves each command of our child once. Its rival is the same command of another build.
func before(cases []benchCase) (kept []benchCase) {
	for _, c := range cases {
		c.rival, c.rivalName, c.rivalOurs, c.source = c.ours, Former, false, ""
		if !slices.ContainsFunc(kept, func(k benchCase) bool {
			return k.ours == c.ours && k.batch == c.batch && k.stagger == c.stagger
		}) {
			kept = append(kept, c)
		}
	}
	return kept
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
	// socketBatch is that of the rows against rivals that are not AF_XDP.
	socketBatch = 32
	// Former is the name of another build of this program as the rival.
	Former = "before"
)

// Kinds of our child's commands. The verbs are what the rivals understand, for the most part.
const (
	queueKind    = "cq"     // whole queues
	goKind       = "go"     // what Go programs would use instead
	fabricKind   = "fabric" // endpoints of package fabric
	scaleKind    = "scale"  // many writers or queues: as many as the batch says, or one
	socketKind   = "xdp"    // packets
	udpConnKind  = "udpconn"
	endpointKind = "endpoint"
	deviceKind   = "device"
)

// steadyDrain is a drain whose reader has read before: what it needs is in the cache.
const steadyDrain = "drain-steady"

// mode is that of the programs.
func (c command) mode() xdp.AttachMode {
	if c.option == "generic" {
		return xdp.AttachGeneric
	}
	return xdp.AttachNative
}
