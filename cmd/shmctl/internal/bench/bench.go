// Package bench measures shmring against programs in C that do the same with nothing around it:
// a ring of the same layout, a raw futex, a raw eventfd, a bare cache line; and against the same
// calls of libfabric.
//
// Absolute figures of a virtual machine say little: where its processors sit changes several times
// a second and moves everything up to tenfold. So only ratios count. Both sides run as two pinned
// processes each, on the same two processors and the same physical memory, in short rounds that
// alternate; a cache-line ping-pong before and after every round tells where the processors are,
// and a pair of rounds counts only if all four probes agree and, where both sides spin, the four
// processes had their processors to themselves. A [Row] reports the median of the paired ratios
// with its 95% interval from order statistics, which assumes no distribution.
package bench

import (
	"context"
	"errors"
	"time"
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

// Wake measures the round trip between two processes that sleep for every message, against the raw
// primitive in C. It needs two processors.
func Wake(ctx context.Context, o Options) ([]Row, error) {
	o = o.withDefaults()
	return measure(ctx, o, wakeCases(o))
}
