package doorbell

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/shmtest"
)

var litmusReport = flag.Int("litmus.report", 0,
	"run each mutant so often, and write testdata/reports/litmus.md")

const litmusHead = `# Litmus tests: how soon their mutants show themselves

Made by "go test ./doorbell -run TestLitmusReport -litmus.report %d" on
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
	if *litmusReport == 0 || raceEnabled {
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
				limit: 20 * time.Second, deadline: 20 * time.Second})
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
				limit: 3 * time.Second, deadline: 3 * time.Second})
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
	text := fmt.Sprintf(litmusHead, *litmusReport, shmtest.Machine()) + b.String()
	if err := os.WriteFile("../testdata/reports/litmus.md", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func short(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
