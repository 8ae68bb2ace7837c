package testdata

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var benchmarksWrite = flag.Bool("benchmarks.write", false,
	"write the tables of docs/benchmarks.md anew")

// measured is a row of what shmctl bench -j prints. Null is a number that is not known.
type measured struct {
	Case      string
	Batch     int
	Ours      float64
	Rival     float64
	RivalName string `json:"rival_name"`
	Unit      string
	Ratio     float64
	Low       float64 `json:"ratio_low"`
	High      float64 `json:"ratio_high"`
	Packets   *struct {
		Ours  float64 `json:"ours_cpu_ns"`
		Rival float64 `json:"rival_cpu_ns"`
	}
	Tail *struct{ Ours, Rival latencies }
}

type latencies struct {
	P50  float64 `json:"p50_ns"`
	P99  float64 `json:"p99_ns"`
	P999 float64 `json:"p99_9_ns"`
	P4   float64 `json:"p99_99_ns"`
	Max  float64 `json:"max_ns"`
	Lost int     `json:"preempted"`
}

const (
	benchmarksColumns = "tables\tbench\tcase\trival\twhat\taims"
	missedTable       = "missed" // all rows that miss their aim
	shortTable        = "short"  // some rows, for README.md
)

// benchmark is a line of benchmarks.tsv: what the rows of a case and a rival are in plain words,
// the tables that they stand in, and their aims, which are ratios, by batch. Batch 0 is any.
type benchmark struct {
	tables, bench, name, rival, what string

	aims map[int]float64
}

func parseBenchmarks(text string) ([]benchmark, error) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if lines[0] != benchmarksColumns {
		return nil, fmt.Errorf("the first line is %q, want %q", lines[0], benchmarksColumns)
	}
	var out []benchmark
	for _, line := range lines[1:] {
		f := strings.Split(line, "\t")
		if len(f) != 6 {
			return nil, fmt.Errorf("%d columns: %q", len(f), line)
		}
		b := benchmark{f[0], f[1], f[2], f[3], f[4], map[int]float64{}}
		for aim := range strings.SplitSeq(f[5], ",") {
			batch, ratio, ok := strings.Cut(aim, "=")
			if !ok {
				batch, ratio = "0", aim
			}
			n, bad := strconv.Atoi(batch)
			x, badRatio := strconv.ParseFloat(ratio, 64)
			if aim == "-" {
				break
			} else if bad != nil || badRatio != nil || x <= 0 {
				return nil, fmt.Errorf("not an aim: %q", line)
			}
			b.aims[n] = x
		}
		out = append(out, b)
	}
	return out, nil
}

// aim returns that of a batch, or 0.
func (b benchmark) aim(batch int) float64 {
	if x, ok := b.aims[batch]; ok {
		return x
	}
	return b.aims[0]
}

// judge says whether the interval keeps the aim: it is the least ratio of a speed and the largest
// of a time.
func (r measured) judge(aim float64) string {
	worst, best := r.Low, r.High
	if r.Unit == "ns" {
		worst, best, aim = -r.High, -r.Low, -aim
	}
	switch {
	case aim == 0:
		return ""
	case r.Low == 0 || worst < aim && best >= aim:
		return "not decided"
	case worst >= aim:
		return "met"
	}
	return "missed"
}

// benchmarkTables returns the tables of the page, by name, made from a report.
func benchmarkTables(lines []benchmark, report []byte) (map[string]string, error) {
	var doc struct{ Bench map[string][]measured }
	if err := json.Unmarshal(report, &doc); err != nil {
		return nil, err
	}
	type key struct{ bench, name, rival string }
	rows, all := map[key][]measured{}, 0
	for bench, list := range doc.Bench {
		for _, r := range list {
			k := key{bench, r.Case, r.RivalName}
			rows[k] = append(rows[k], r)
		}
		all += len(list)
	}
	out := map[string]string{
		missedTable: heading("| | batch | ratio | aim |"),
		shortTable:  heading("| | batch | ours | rival | ratio |"),
	}
	for _, b := range lines {
		list := rows[key{b.bench, b.name, b.rival}]
		if len(list) == 0 {
			return nil, fmt.Errorf("the report has no %s %s over %s", b.bench, b.name, b.rival)
		}
		table, short, _ := strings.Cut(b.tables, ",")
		for i, r := range list {
			if out[table] == "" {
				out[table] = r.heading()
			}
			out[table] += r.line(b, i > 0)
			if short == shortTable {
				out[short] += cells(b.what, strconv.Itoa(r.Batch), figure(r.Ours, r.Unit),
					figure(r.Rival, r.Unit), ratio(r.Ratio))
			}
			if aim := b.aim(r.Batch); r.judge(aim) == "missed" {
				out[missedTable] += cells(b.what, strconv.Itoa(r.Batch), ratio(r.Ratio), r.bound(aim))
			}
		}
		all -= len(list)
	}
	if all != 0 {
		return nil, fmt.Errorf("%d rows of the report are in no line, or in two", all)
	}
	return out, nil
}

func (r measured) heading() string {
	switch {
	case r.Packets != nil:
		return heading("| | batch | ours | rival | CPU a packet | ratio | interval | aim | |")
	case r.Tail != nil:
		return heading("| | side | p50 | p99 | p99.9 | p99.99 | longest | preempted |")
	}
	return heading("| | batch | ours | rival | ratio | interval | aim | |")
}

func heading(h string) string {
	return h + "\n" + strings.Repeat("|---", strings.Count(h, "|")-1) + "|\n"
}

func cells(c ...string) string { return "| " + strings.Join(c, " | ") + " |\n" }

// line is a row of a table. Where it goes on with the case of the row above it does not repeat it.
func (r measured) line(b benchmark, goesOn bool) string {
	if t := r.Tail; t != nil {
		return t.Ours.line(b.what, "ours") + t.Rival.line("", "C")
	}
	what := b.what
	if goesOn {
		what = ""
	}
	row := []string{what, strconv.Itoa(r.Batch), figure(r.Ours, r.Unit), figure(r.Rival, r.Unit)}
	if p := r.Packets; p != nil {
		row = append(row, figure(p.Ours, "ns")+", "+figure(p.Rival, "ns"))
	}
	interval := "too few pairs"
	if r.Low != 0 {
		interval = ratio(r.Low) + " to " + ratio(r.High)
	}
	aim := b.aim(r.Batch)
	return cells(append(row, ratio(r.Ratio), interval, r.bound(aim), r.judge(aim))...)
}

func (l latencies) line(what, side string) string {
	row := []string{what, side}
	for _, x := range []float64{l.P50, l.P99, l.P999, l.P4, l.Max} {
		row = append(row, figure(x, "ns"))
	}
	return cells(append(row, strconv.Itoa(l.Lost))...)
}

// bound is an aim in words.
func (r measured) bound(aim float64) string {
	switch x := strconv.FormatFloat(aim, 'f', -1, 64); {
	case aim == 0:
		return ""
	case r.Unit == "ns":
		return "at most " + x
	default:
		return "at least " + x
	}
}

// figure writes three digits and a unit that keeps the number short.
func figure(x float64, unit string) string {
	switch {
	case x == 0:
		return "-"
	case unit == "Mops/s":
		return digits(x) + " M/s"
	case x < 999.5:
		return digits(x) + " ns"
	case x < 999_500:
		return digits(x/1e3) + " µs"
	}
	return digits(x/1e6) + " ms"
}

func digits(x float64) string {
	switch {
	case x >= 99.95:
		return fmt.Sprintf("%.0f", x)
	case x >= 9.995:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

func ratio(x float64) string {
	switch {
	case x == 0:
		return "-"
	case x >= 9.95:
		return fmt.Sprintf("%.0f", x)
	case x >= 0.0995:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.2g", x)
}

var tableMark = regexp.MustCompile(`(?s)<!-- table (\w+) -->\n.*?<!-- end -->\n`)

// fillTables puts tables between the marks of a page, and takes them out of the map.
func fillTables(page string, tables map[string]string) (string, error) {
	var err error
	page = tableMark.ReplaceAllStringFunc(page, func(old string) string {
		name := tableMark.FindStringSubmatch(old)[1]
		if tables[name] == "" {
			err = fmt.Errorf("there is no table %q, or it stands twice", name)
		}
		text := tables[name]
		delete(tables, name)
		return "<!-- table " + name + " -->\n" + text + "<!-- end -->\n"
	})
	return page, err
}

// TestBenchmarksPage: the tables of the pages are those of the report, each of them once.
func TestBenchmarksPage(t *testing.T) {
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	lines, err := parseBenchmarks(read("benchmarks.tsv"))
	if err != nil {
		t.Fatalf("benchmarks.tsv: %v", err)
	}
	tables, err := benchmarkTables(lines, []byte(read("reports/bench.json")))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"../docs/benchmarks.md", "../README.md"} {
		got := read(page)
		want, err := fillTables(got, tables)
		if err != nil {
			t.Fatalf("%s: %v", page, err)
		}
		if want == got {
			continue
		}
		if !*benchmarksWrite {
			t.Errorf("%s has not the tables of the report: run with -benchmarks.write", page)
		} else if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Error(err)
		}
	}
	for name := range tables {
		t.Errorf("the table %q stands nowhere", name)
	}
}

// TestBenchmarksRefuse: what makes the tables finds what is wrong, and judges by the worse end.
func TestBenchmarksRefuse(t *testing.T) {
	const good = benchmarksColumns + "\na\tring\tspsc\tc\twords\t1=0.8,0.9\n"
	lines, err := parseBenchmarks(good)
	if err != nil || lines[0].aim(1) != 0.8 || lines[0].aim(32) != 0.9 {
		t.Fatal(lines, err)
	}
	for _, bad := range []string{good[1:], good + "a\tb\n", strings.Replace(good, "0.8", "x", 1),
		strings.Replace(good, "0.9", "-1", 1)} {
		if _, err := parseBenchmarks(bad); err == nil {
			t.Errorf("nothing is wrong with %q", bad)
		}
	}
	const row = `{"case":"spsc","batch":1,"rival_name":"c","unit":"ns","ratio":1}`
	tables, err := benchmarkTables(lines, []byte(`{"bench":{"ring":[`+row+`]}}`))
	if err != nil || !strings.Contains(tables["a"], "| at most 0.8 | not decided |") {
		t.Error(tables, err)
	}
	for _, bad := range []string{"", `{"bench":{}}`,
		`{"bench":{"ring":[` + row + `],"cq":[` + row + `]}}`} {
		if _, err := benchmarkTables(lines, []byte(bad)); err == nil {
			t.Errorf("nothing is wrong with %q", bad)
		}
	}
	for page, right := range map[string]bool{
		"<!-- table a -->\nold\n<!-- end -->\n":                    true,
		"<!-- table b -->\nold\n<!-- end -->\n":                    false,
		strings.Repeat("<!-- table a -->\nold\n<!-- end -->\n", 2): false,
	} {
		if got, err := fillTables(page, map[string]string{"a": "new\n"}); (err == nil) != right ||
			right && !strings.Contains(got, "\nnew\n") {
			t.Errorf("%q becomes %q (%v)", page, got, err)
		}
	}
	for _, c := range []struct {
		unit           string
		low, high, aim float64
		want           string
	}{
		{"Mops/s", 0.8, 0.9, 0.8, "met"}, {"Mops/s", 0.7, 0.79, 0.8, "missed"},
		{"Mops/s", 0.7, 0.8, 0.8, "not decided"}, {"ns", 0.7, 0.8, 0.8, "met"},
		{"ns", 0.81, 0.9, 0.8, "missed"}, {"ns", 0.8, 0.9, 0.8, "not decided"},
		{"ns", 0, 0, 0.8, "not decided"}, {"ns", 0.7, 0.8, 0, ""},
	} {
		if got := (measured{Unit: c.unit, Low: c.low, High: c.high}).judge(c.aim); got != c.want {
			t.Errorf("%v: %q", c, got)
		}
	}
}
