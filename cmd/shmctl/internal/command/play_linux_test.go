package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cmd/shmctl/internal/bench"
	"github.com/shmring/shmring/cmd/shmctl/internal/demo"
	"github.com/shmring/shmring/cmd/shmctl/internal/hostile"
	"github.com/shmring/shmring/cmd/shmctl/internal/soak"
	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/internal/shmtest"
)

func TestTorture(t *testing.T) {
	shmtest.Long(t)
	newDir(t)
	const usual = "reader,writer,churner,event-writer,counter" // all at once are for longer runs
	text := ok(t, "torture", "--kills", "20", "--seed", "3", "--roles", usual, "-o", "json")
	r := parsed[torture.Report](t, "torture", text)
	if r.Seed != 3 || r.Kills < 20 || r.Read == 0 || !r.Good() {
		t.Errorf("%s", text)
	}
	text = ok(t, "torture", "--duration", "300ms", "--roles", "counter")
	if !says(text, "lost", "0") {
		t.Errorf("%s", text)
	}
}

// TestTortureRoles: without a choice everybody takes part who can, and it is said who cannot.
func TestTortureRoles(t *testing.T) {
	var said strings.Builder
	all := rolesHere(&said, func(name string) error {
		if name == "device" {
			return errors.New("no interface")
		}
		return nil
	})
	if len(all) != len(torture.Roles())-1 || slices.Contains(all, "device") ||
		!slices.Contains(all, "others-writer") ||
		said.String() != "shmctl: torture without device: no interface\n" {
		t.Errorf("%v, %q", all, said.String())
	}
}

func TestHostile(t *testing.T) {
	shmtest.RequireRoot(t, "root", "only root starts processes of other users")
	newDir(t)
	text := ok(t, "torture", "hostile", "--mutations", "1000", "--seed", "3", "--surfaces",
		"event-lane", "-o", "json")
	r := parsed[hostile.Report](t, "hostile", text)
	if r.Seed != 3 || r.Mutations < 1000 || len(r.Surfaces) != 1 || !r.Good() {
		t.Errorf("%s", text)
	}
	file := filepath.Join(t.TempDir(), "hostile.json")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	text = ok(t, "torture", "report", file)
	has(t, text, "\n| attacks that provoked nothing | 0 |\n",
		"\n| event-lane | users |")
	text = ok(t, "torture", "hostile", "--mutations", "1000", "--surfaces", "event-lane")
	if !says(text, "processes ended by a peer", "0") {
		t.Errorf("%s", text)
	}
}

func TestSoak(t *testing.T) {
	shmtest.Long(t)
	newDir(t)
	var text string
	var r soak.Report
	// The first round has the roles that begin slowest, and nobody dies before it has begun: on a
	// machine that is short of time that takes longer.
	for d := time.Second; ; d *= 2 {
		text = ok(t, "torture", "soak", "--duration", d.String(), "--round", d.String(), "--seed", "3",
			"-o", "json")
		r = parsed[soak.Report](t, "soak", text)
		if r.Seed != 3 || r.Rounds == 0 || r.Mutations == 0 && os.Geteuid() == 0 || !r.Good() {
			t.Fatalf("%s", text)
		}
		if r.Kills > 0 && r.Operations > 0 {
			break
		}
		if d > 2*time.Minute {
			t.Fatalf("nobody died, or did anything: %s", text)
		}
	}
	var b strings.Builder
	r.Sheet().Print(&b)
	if !says(b.String(), "lost", "0") {
		t.Error(b.String())
	}
	file := filepath.Join(t.TempDir(), "soak.json")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	has(t, ok(t, "torture", "report", file), "\n| lost | 0 |\n")
	for _, text := range r.Skipped { // a soak without its device half is half of one
		if strings.HasPrefix(text, "torture: ") && strings.Contains(text, "device") {
			shmtest.Require(t, "xdp", errors.New(text))
		}
	}
}

// TestDemo runs it as far as it goes without privilege.
func TestDemo(t *testing.T) {
	newDir(t)
	args := []string{"demo", "--path", "shm", "-c", "2000"}
	text := ok(t, append(args, "-j")...)
	d := parsed[demo.Report](t, "demo", text)
	if d.Path != "shm" || d.Mode != nil || d.Reason == nil || d.RX.Completed != 2000 ||
		!strings.Contains(text, `"mode":null`) {
		t.Errorf("%s", text)
	}
	text = ok(t, args...)
	if !strings.Contains(text, "device path not taken") ||
		strings.Count(text, "2000 sent, 2000 completed, 0 lost, 0 corrupt, 0 duplicate") != 2 {
		t.Errorf("%s", text)
	}
}

// TestDemoKeys: what is demanded of every demo is printed, and what is printed is described.
func TestDemoKeys(t *testing.T) {
	text := shmtest.Got(json.Marshal(demo.Report{})).Or(t)
	printed := map[string]json.RawMessage{}
	must(t, json.Unmarshal(text, &printed))
	direction := map[string]json.RawMessage{}
	must(t, json.Unmarshal(printed["rx"], &direction))
	latency := map[string]json.RawMessage{}
	must(t, json.Unmarshal(direction["latency_ns"], &latency))
	defs := schemaDefs(t)
	for def, got := range map[string]map[string]json.RawMessage{"demo": printed,
		"direction": direction, "latency": latency} {
		d := defs[def]
		if len(d.Required) == 0 {
			t.Errorf("%s: nothing is demanded", def)
		}
		for _, key := range d.Required {
			if got[key] == nil {
				t.Errorf("%s: %q is demanded and not printed", def, key)
			}
		}
		for key := range got {
			if d.Properties[key] == nil {
				t.Errorf("%s: %q is printed and not described", def, key)
			}
		}
	}
	for _, key := range []string{"path", "mode", "kernel", "pids", "rx", "tx", "wakes",
		"wakes_suppressed", "library_syscalls_per_1000"} {
		if !slices.Contains(defs["demo"].Required, key) {
			t.Errorf("%q is not demanded", key)
		}
	}
}

// TestDemoProgress: a terminal sees how far it is, and nothing of that stays.
func TestDemoProgress(t *testing.T) {
	newDir(t)
	p := newPTY(t, 100, 24)
	var stdout bytes.Buffer
	code := Main(t.Context(), []string{"demo", "--path", "shm", "-c", "20000"},
		strings.NewReader(""), &stdout, p.tty)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, p.text())
	}
	// It is read from the terminal meanwhile.
	eventually(t, "the last line is cleared", func() bool {
		return strings.HasSuffix(p.text(), "\r"+escToLineEnd)
	})
	for _, phase := range []string{"rx: ", "tx: "} {
		if !strings.Contains(p.text(), "\r"+phase) {
			t.Errorf("%q is missing in %q", phase, p.text())
		}
	}
	if strings.Contains(p.text(), "\n") || strings.Contains(stdout.String(), "\x1b") {
		t.Errorf("progress stays: %q, %q", p.text(), stdout.String())
	}
}

// TestPhasesAreShown: a direction that is over before it is time to show anything is shown once.
func TestPhasesAreShown(t *testing.T) {
	var b bytes.Buffer
	p := &progress{w: &b, term: terminal{on: true, columns: 80}}
	for _, phase := range []string{"rx", "rx", "tx"} {
		p.phase(phase).line("%s: 1", phase)
	}
	if text := b.String(); strings.Count(text, "\rrx: ") != 1 || strings.Count(text, "\rtx: ") != 1 {
		t.Errorf("shown is %q", text)
	}
}

func TestVerdict(t *testing.T) {
	row := func(unit string, low, high float64) *bench.Row {
		return &bench.Row{Unit: unit, RatioLow: &low, RatioHigh: &high, RivalName: "c"}
	}
	former := func(low, high float64) *bench.Row {
		r := row("Mops/s", low, high)
		r.RivalName = bench.Former
		return r
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
		{former(0.98, 0.99), "as fast as before"}, {former(0.9, 0.96), "slower than before"},
		{former(0.96, 1.1), "not decided: measure longer"}, {former(1.04, 1.1), "faster than before"},
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
	file := filepath.Join(t.TempDir(), "bench.html")
	text := ok(t, "bench", "tail", "scale", "--pairs", "1", "--round", "1ms", "--case", "[ro]*",
		"--cc", "none", "--report", file)
	if !strings.Contains(text, "P99.99") || !strings.Contains(text, "ours") {
		t.Errorf("table of tails:\n%s", text)
	}
	page, err := os.ReadFile(file)
	if must(t, err); !bytes.Contains(page, []byte("<th>P99.99</th>")) ||
		!bytes.Contains(page, []byte("<h2>scale</h2>")) {
		t.Errorf("report:\n%s", page)
	}
	args := []string{"bench", "wake", "--pairs", "1", "--round", "1ms", "--cc", "none"}
	text = ok(t, args...)
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

// TestBenchUnfinished: what was measured before a bench failed, or was interrupted, is shown. Rows
// of scale need no compiler, those of tail do.
func TestBenchUnfinished(t *testing.T) {
	shmtest.Long(t)
	if runtime.NumCPU() < 2 {
		shmtest.Require(t, "cpus", errors.New("two processors"))
	}
	for name, c := range map[string]struct{ compiler, says string }{
		"failed":      {"echo moon >&2; exit 1", "moon"},
		"interrupted": {"echo > \"$0.runs\"; exec sleep 600", "tail: interrupted"},
	} {
		t.Run(name, func(t *testing.T) {
			cc := filepath.Join(t.TempDir(), "cc")
			must(t, os.WriteFile(cc, []byte("#!/bin/sh\n"+c.compiler), 0o755))
			must(t, unix.Mkfifo(cc+".runs", 0o600))
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			if name == "interrupted" {
				go func() {
					_, _ = os.ReadFile(cc + ".runs")
					interrupt()
				}()
			}
			r := runContext(t, ctx, "bench", "scale", "tail", "--pairs", "1", "--round", "1ms",
				"--case", "[ro]*", "--cc", cc)
			if r.code != 1 || strings.Count(r.stdout, "\nscale") != 3 {
				t.Errorf("exit %d\n%s", r.code, r.stdout)
			}
			has(t, r.stderr, c.says)
			if lacks := "canceled"; strings.Contains(r.stderr, lacks) {
				t.Error(r.stderr)
			}
		})
	}
}
