package command

import (
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/shmring/shmring/cmd/shmctl/internal/bench"
	"github.com/shmring/shmring/internal/shmtest"
)

func TestVerdict(t *testing.T) {
	row := func(unit string, low, high float64) *bench.Row {
		return &bench.Row{Unit: unit, RatioLow: &low, RatioHigh: &high, RivalName: "c"}
	}
	for _, c := range []struct {
		row  *bench.Row
		want string
	}{
		{row("Mops/s", 1.2, 1.3), "faster than c"}, {row("ns", 0.7, 0.8), "faster than c"},
		{row("Mops/s", 0.96, 1.3), "as fast as c"}, {row("ns", 0.7, 1.04), "as fast as c"},
		{row("Mops/s", 0.5, 0.9), "slower than c"}, {row("ns", 1.1, 1.4), "slower than c"},
		{row("Mops/s", 0.9, 1.1), "not decided: measure longer"},
		{row("ns", 0.9, 1.2), "not decided: measure longer"},
		{&bench.Row{Note: "no compiler"}, "no compiler"}, {&bench.Row{}, "not measured"},
	} {
		if got := verdict(c.row); got != c.want {
			t.Errorf("%s %v: %q, want %q", c.row.Unit, c.row.RatioLow, got, c.want)
		}
	}
}

// TestBench measures for a moment, to see that the figures come through.
func TestBench(t *testing.T) {
	shmtest.Long(t)
	if runtime.NumCPU() < 2 {
		shmtest.Require(t, "cpus", errors.New("two processors"))
	}
	if runtime.GOOS != "linux" {
		t.Skip("pinning processes needs Linux")
	}
	args := []string{"bench", "wake", "--pairs", "3", "--round", "1ms", "--cc", "none"}
	text := ok(t, args...)
	if !strings.HasPrefix(text, "BENCH") || !strings.Contains(text, "no C compiler") {
		t.Errorf("table:\n%s", text)
	}
	text = ok(t, append(args, "-j")...)
	valid(t, text)
	var v struct{ Bench map[string][]bench.Row }
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	rows := v.Bench["wake"]
	if len(v.Bench) != 1 || len(rows) != 2 || rows[0].Ours == nil || rows[0].Rival != nil {
		t.Errorf("%s", text)
	}
}
