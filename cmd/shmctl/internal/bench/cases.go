package bench

import (
	"fmt"
	"path"

	"github.com/shmring/shmring/xdp"
)

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
