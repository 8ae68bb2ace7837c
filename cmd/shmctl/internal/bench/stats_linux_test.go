package bench

import (
	"math"
	"os"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/stage"
)

func TestMain(m *testing.M) {
	if handled, code := stage.Enter(os.Args[1:], Tool); handled {
		os.Exit(code)
	}
	shmtest.Main(m)
}

func TestCases(t *testing.T) {
	all := len(benchOf(t, "cq").cases(Options{Batches: []int{1}}))
	for pattern, want := range map[string]int{"": all, "read-empty": 1, "trip-*": 2, "no": 0} {
		o := Options{Batches: []int{1}, Cases: pattern}
		if got := len(benchOf(t, "cq").cases(o)); got != want {
			t.Errorf("%q: %d cases, want %d", pattern, got, want)
		}
	}
	if _, err := benchOf(t, "cq").Run(t.Context(), Options{Cases: "["}); err == nil {
		t.Error("a bad pattern passes")
	}
}

// TestUnknownOptions: what another build asks for, and this one does not know, is not measured as
// something else.
func TestUnknownOptions(t *testing.T) {
	for _, name := range []string{"fabric-trip+x", "fabric-send-1m+x", "scale-all+x"} {
		c := named(name)
		if _, err := runners[c.kind](&party{}, c); err == nil {
			t.Errorf("%s is measured", name)
		}
	}
}

func TestMedianRanksMatchTheTables(t *testing.T) {
	// Ranks (from 1) of the usual 95% interval of a median, as in tables of the sign test.
	for _, c := range []struct{ n, low, high int }{
		{6, 1, 6}, {8, 1, 8}, {9, 2, 8}, {10, 2, 9}, {15, 4, 12}, {20, 6, 15}, {25, 8, 18},
		{30, 10, 21}, {40, 14, 27}, {50, 18, 33}, {100, 40, 61},
	} {
		low, high, ok := medianRanks(c.n)
		if !ok || low+1 != c.low || high+1 != c.high {
			t.Errorf("n=%d: ranks %d to %d (ok %v), want %d to %d", c.n, low+1, high+1, ok, c.low,
				c.high)
		}
	}
	for n := range 6 {
		if _, _, ok := medianRanks(n); ok {
			t.Errorf("n=%d: there is no 95%% interval", n)
		}
	}
}

func TestQuantile(t *testing.T) {
	xs := []float64{1, 2, 4, 8}
	for _, c := range []struct{ q, want float64 }{{0, 1}, {0.5, 3}, {1, 8}, {0.25, 1.75}} {
		if got := quantile(xs, c.q); got != c.want {
			t.Errorf("quantile %v: %v, want %v", c.q, got, c.want)
		}
	}
}

func outcomeAt(value, before, after float64) outcome {
	return outcome{value: value, before: before, after: after, share: 1}
}

func TestReportDropsDisturbedPairs(t *testing.T) {
	var pairs []pair
	for i := range 20 {
		// 10% slower than the rival wherever both run, in two placements that are far apart.
		at := 55.0
		if i%2 == 0 {
			at = 530
		}
		pairs = append(pairs, pair{outcomeAt(0.9*at, at, 1.05*at), outcomeAt(at, at, 1.1*at)})
	}
	moved := pair{outcomeAt(530, 55, 530), outcomeAt(55, 55, 55)}
	between := pair{outcomeAt(530, 530, 530), outcomeAt(55, 55, 55)}
	shared := pair{outcomeAt(55, 55, 55), outcomeAt(110, 55, 55)}
	shared.rival.share = 0.5
	pairs = append(pairs, moved, between, shared)

	var r Row
	r.report(pairs)
	if r.Rounds != 20 || r.Dropped != 3 {
		t.Fatalf("%d pairs counted and %d dropped, want 20 and 3", r.Rounds, r.Dropped)
	}
	for _, x := range []*float64{r.Ratio, r.RatioLow, r.RatioHigh} {
		if x == nil || math.Abs(*x-0.9) > 1e-9 {
			t.Fatalf("ratio %v, want 0.9 with no width: pairs of one placement", x)
		}
	}
	if *r.Spread > 1e-9 {
		t.Errorf("spread %v, want 0", *r.Spread)
	}
}

func TestReportSaysWhatIsMissing(t *testing.T) {
	var r Row
	r.report([]pair{{outcomeAt(1, 55, 530), outcomeAt(1, 55, 55)}})
	if r.Ratio != nil || r.Note == "" || r.Dropped != 1 {
		t.Errorf("only a pair that moved: %+v", r)
	}
	r = Row{}
	r.report([]pair{{outcomeAt(1, 55, 55), outcomeAt(2, 55, 55)}})
	if r.Ratio == nil || *r.Ratio != 0.5 || r.RatioLow != nil || r.Note == "" {
		t.Errorf("one pair: %+v", r)
	}
	r = Row{}
	r.reportOurs([]pair{{ours: outcomeAt(3, 55, 55)}})
	if r.Rival != nil || r.Ratio != nil || *r.Ours != 3 || r.Rounds != 1 {
		t.Errorf("no rival: %+v", r)
	}
}

func TestValue(t *testing.T) {
	if got := (benchCase{perSecond: true}).value(1000, 50); got != 50 {
		t.Errorf("50 messages in 1000 ns: %v Mops/s", got)
	}
	if got := (benchCase{halve: true}).value(1000, 50); got != 10 {
		t.Errorf("50 round trips in 1000 ns: %v ns one way", got)
	}
}

func TestRelativeShares(t *testing.T) {
	half, quarter, whole := outcome{share: 0.5}, outcome{share: 0.25}, outcome{share: 1}
	pairs := []pair{{half, whole}, {quarter, whole}}
	relativeShares(pairs)
	if pairs[0].ours.share != 1 || pairs[1].ours.share != 0.5 || pairs[1].rival.share != 1 {
		t.Errorf("%+v", pairs)
	}
	relativeShares([]pair{{}}) // a case without a rival
}

// Quantiles are those of all rounds, and a time that came up once stands in the distribution.
func TestLatencies(t *testing.T) {
	words := make([]uint64, tailWords)
	words[tailPreempt], words[tailPreempt+1], words[tailPause+1] = 2, 3, 500
	words[tailCounts+stage.TimeCount(100)] = 9990
	words[tailCounts+stage.TimeCount(1000)] = 9
	words[tailCounts+stage.TimeCount(64000)] = 1
	words[tailLongest] = 64000
	var all times
	all.add(words)
	all.add(words)
	l := all.latencies()
	if l.Messages != 20000 || l.Preempted != 10 || l.LongestPause != 500 || l.Max != 32000 ||
		l.P50 != 50.5 || l.P999 != 50.5 || l.P9999 < 500 || l.P9999 > 508 || len(l.Above) != 3 ||
		l.Above[2].Ns != 32000 || l.Above[2].Part != 0 {
		t.Errorf("%+v", l)
	}
}
