package bench

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime/metrics"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/ring"
)

// Tail is how long single messages took: of all rounds, also those in which the processors moved
// or were shared, since that is what a tail is made of. Times are nanoseconds, one way: half of a
// round trip.
type Tail struct {
	Ours  Latencies  `json:"ours"`
	Rival *Latencies `json:"rival"`
}

// Latencies are those of one side.
type Latencies struct {
	Messages uint64  `json:"messages"` // each way
	P50      float64 `json:"p50_ns"`
	P90      float64 `json:"p90_ns"`
	P99      float64 `json:"p99_ns"`
	P999     float64 `json:"p99_9_ns"`
	P9999    float64 `json:"p99_99_ns"`
	Max      float64 `json:"max_ns"`
	// Preempted is how often the kernel took the processor away from either process, Collections how
	// often the Go runtime collected garbage, and LongestPause how long at most it stopped a process
	// for that.
	Preempted    uint64  `json:"preempted"`
	Collections  uint64  `json:"collections"`
	LongestPause float64 `json:"longest_pause_ns"`
	// Above is the part of all messages that took longer than Ns, for each time that came up.
	Above []Exceeded `json:"above"`
}

// Exceeded is a point of a distribution.
type Exceeded struct {
	Ns   float64 `json:"ns"`
	Part float64 `json:"part"`
}

// What a round leaves in its area: words of either role, then counts of round trips by their time.
// testdata/rivals/bench.h repeats it; a test compares.
const (
	tail0        = 4096
	tailPreempt  = 0 // words, one a role
	tailCollect  = 2
	tailPause    = 4
	tailLongest  = 6 // of role 0
	tailCounts   = 8
	tailWords    = tailCounts + stage.TimeCounts
	tailPairs    = 11
	tailRound    = 500 * time.Millisecond
	liveHeap     = 16 << 20
	garbagePerNs = 0.2 // bytes: 200 MB a second
)

// times are what all rounds of a side left so far.
type times struct {
	said Latencies
	of   stage.Times // there and back
}

// add takes what a round left.
func (t *times) add(words []uint64) {
	for role := range 2 {
		t.said.Preempted += words[tailPreempt+role]
		t.said.Collections += words[tailCollect+role]
		t.said.LongestPause = max(t.said.LongestPause, float64(words[tailPause+role]))
	}
	t.of.Most = max(t.of.Most, words[tailLongest])
	for i := range t.of.Counts {
		t.of.Counts[i] += words[tailCounts+i]
	}
}

// latencies says what the counts of all rounds amount to.
func (t *times) latencies() Latencies {
	l := t.said
	l.Max = float64(t.of.Most) / 2
	quantiles := []struct {
		part float64
		at   *float64
	}{{0.5, &l.P50}, {0.9, &l.P90}, {0.99, &l.P99}, {0.999, &l.P999}, {0.9999, &l.P9999}}
	l.Messages = t.of.Each(func(ns, part float64) {
		for len(quantiles) > 0 && part >= quantiles[0].part {
			*quantiles[0].at = ns / 2
			quantiles = quantiles[1:]
		}
		l.Above = append(l.Above, Exceeded{ns / 2, 1 - part})
	})
	return l
}

// heap is what a program does beside its messages: it allocates, and keeps some of it.
type heap struct {
	live [][]byte
	next int
	owed float64 // bytes
}

// pieceBytes is one allocation.
const pieceBytes = 256

// keepUp allocates what is due after so many nanoseconds.
func (h *heap) keepUp(ns int64) {
	for h.owed += garbagePerNs * float64(ns); h.owed >= pieceBytes; h.owed -= pieceBytes {
		h.live[h.next] = make([]byte, pieceBytes)
		h.next = (h.next + 1) % len(h.live)
	}
}

// runtimeSays returns how many collections there were, and the times for which they stopped the
// process, with how often each.
func runtimeSays() (collections uint64, pauses *metrics.Float64Histogram) {
	s := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(s)
	return s[0].Value.Uint64(), s[1].Value.Float64Histogram()
}

// longestSince returns an upper bound of the pauses between two answers of the runtime, in
// nanoseconds.
func longestSince(before, after *metrics.Float64Histogram) uint64 {
	for i := len(after.Counts) - 1; i >= 0; i-- {
		if after.Counts[i] == before.Counts[i] {
			continue
		}
		end := after.Buckets[i+1]
		if math.IsInf(end, 1) {
			end = after.Buckets[i]
		}
		return uint64(end * 1e9)
	}
	return 0
}

// preemptions is how often the kernel took the processor away from this thread.
func preemptions() uint64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u)
	return uint64(u.Nivcsw)
}

// tailRunner is ping-pong of which role 0 writes down how long each round trip took.
func (p *party) tailRunner(c command) (func() (uint64, bool, error), error) {
	trip, err := p.tripper(c)
	if err != nil {
		return nil, err
	}
	words, err := ring.Slots[uint64](p.mem[tail0:][:tailWords*8])
	if err != nil {
		return nil, err
	}
	if p.role == 0 {
		clear(words[tailLongest:])
	}
	if c.option == "heap" && p.heap == nil {
		p.heap = &heap{live: make([][]byte, liveHeap/pieceBytes)}
	}
	return func() (total uint64, _ bool, err error) {
		collected, paused := runtimeSays()
		preempted, longest := preemptions(), uint64(0)
		for began, i := spin.Now(), uint64(0); i < c.count; i++ {
			got, err := trip()
			if err != nil {
				return 0, false, err
			}
			total += got
			now := spin.Now()
			took := now - began
			if began = now; p.role == 0 {
				longest = max(longest, uint64(took))
				words[tailCounts+stage.TimeCount(uint64(took))]++
			}
			if p.heap != nil {
				p.heap.keepUp(took)
			}
		}
		collections, pauses := runtimeSays()
		words[tailPreempt+p.role] = preemptions() - preempted
		words[tailCollect+p.role] = collections - collected
		words[tailPause+p.role] = longestSince(paused, pauses)
		if p.role == 0 {
			words[tailLongest] = longest
		}
		return total, p.role == 0, nil
	}, nil
}

// tripper returns what a round trip is for this role, and what it read adds up to: of a ring as of
// the rival, of a queue 0, since that checks each entry.
func (p *party) tripper(c command) (func() (uint64, error), error) {
	if c.kind == "" {
		out, err := p.outlet(c)
		if err != nil {
			return nil, err
		}
		in, err := p.inlet(c)
		return func() (uint64, error) { return p.pingpong(out, in, 1, func() {}) }, err
	}
	s, err := p.openQueues(c)
	if err != nil {
		return nil, err
	}
	once := c
	once.count, once.batch = 1, 1
	out, in := make([]cq.Entry, 1), make([]cq.Tagged, 1)
	return func() (uint64, error) { return 0, s.pingpong(p.role, once, out, in) }, nil
}

// timesOf adds what a side left in the area of its round.
func (b *bencher) timesOf(s *side) error {
	raw := make([]byte, tailWords*8)
	if _, err := b.shared.files[0].ReadAt(raw, int64(b.area)*areaBytes+tail0); err != nil {
		return fmt.Errorf("times of messages: %w", err)
	}
	words := make([]uint64, tailWords)
	for i := range words {
		words[i] = binary.NativeEndian.Uint64(raw[i*8:])
	}
	s.times.add(words)
	return nil
}
