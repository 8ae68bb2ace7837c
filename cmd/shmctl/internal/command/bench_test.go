package command

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/shmring/shmring/cmd/shmctl/internal/bench"
	"github.com/shmring/shmring/ctl"
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
		if got := verdict(c.row, margin); got != c.want {
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
	all := parsed[map[string][]bench.Row](t, "bench", text)
	rows := all["wake"]
	if len(all) != 1 || len(rows) != 2 || rows[0].Ours == nil || rows[0].Rival != nil {
		t.Errorf("%s", text)
	}
}

// TestBenchCompare: two programs are compared round by round, and a slower one fails.
func TestBenchCompare(t *testing.T) {
	dir := t.TempDir()
	file := func(name, ns string) string {
		path := filepath.Join(dir, name)
		text := `{"schema":"shmctl/1","bench":{"wake":[{"case":"futex","batch":1,"unit":"ns",` +
			`"ours":` + ns + `,"rival_name":"c"}]}}`
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	old, same, slow := file("old", "100"), file("same", "102"), file("slow", "104")
	none := filepath.Join(dir, "none") // there is none
	rounds := func(n int, pair ...string) []string {
		return append([]string{"bench", "compare"}, slices.Repeat(pair, n)...)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{rounds(6, old, same), 0, "1.020 to 1.020       6  as fast as before\n"},
		{rounds(6, slow, old), 0, "faster than before\n"},
		{rounds(6, old, slow), ctl.CodeFailure, "slower than before\n"},
		{rounds(2, old, slow), 0, "too few rounds for an interval\n"},
		{rounds(1, old, none), ctl.CodeNotFound, ""},
		{rounds(1, old), ctl.CodeUsage, ""},
		{rounds(0), ctl.CodeUsage, ""},
	} {
		if r := run(t, c.args...); r.code != c.code || !strings.Contains(r.stdout, c.says) {
			t.Errorf("%q: exit %d, %s%s", c.args, r.code, r.stdout, r.stderr)
		}
	}
}
