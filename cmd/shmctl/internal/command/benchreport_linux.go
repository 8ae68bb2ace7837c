package command

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/bench"
	"github.com/shmring/shmring/cmd/shmctl/internal/webpage"
	"github.com/shmring/shmring/internal/stage"
)

// writeReport writes what was measured as a page with plots.
func writeReport(path string, results map[string][]bench.Row) (err error) {
	p := webpage.Page{Title: "shmctl bench", Facts: []string{stage.Here().String(), program(),
		time.Now().UTC().Format(time.RFC3339)}}
	for _, b := range bench.Benches {
		if rows := results[b.Name]; len(rows) > 0 {
			p.Sections = append(p.Sections, benchSection(b.Name, b.Says, rows))
		}
	}
	// Beside its place first: who looks at it sees all of it or what was there before.
	f, err := os.CreateTemp(filepath.Dir(path), ".shmctl-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	err = p.Write(f)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err = cmp.Or(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// program says which commit this was built from, as far as that is known.
func program() string {
	v := readVersion()
	if v.Revision == nil {
		return "shmctl unknown commit"
	}
	text := "shmctl commit " + *v.Revision
	if v.Modified != nil && *v.Modified {
		text += ", changed"
	}
	return text
}

// benchSection is the part about one bench.
func benchSection(name, says string, rows []bench.Row) webpage.Section {
	t := benchTable()
	for i := range rows {
		t.add(benchRow(name, &rows[i])...)
	}
	t.drop("BENCH")
	if name == "tail" {
		t = tailTable(rows)
	}
	s := webpage.Section{Title: name, Text: says, Cells: t.rows}
	for _, c := range t.columns {
		s.Head = append(s.Head, c.title)
	}
	switch name {
	case "tail":
		s.Charts = tailCharts(rows)
	case "scale":
		s.Charts = []webpage.Chart{scaleChart(rows)}
	default:
		s.Charts = append(batchCharts(rows), ratioChart(rows))
	}
	s.Charts = slices.DeleteFunc(s.Charts, func(c webpage.Chart) bool { // where nothing counted
		return len(c.Lines) == 0 && len(c.Intervals) == 0
	})
	return s
}

// better is how often as good as its rival a row is: above 1, ours is faster.
func better(r *bench.Row, ratio float64) float64 {
	if r.Unit == "ns" {
		return 1 / ratio
	}
	return ratio
}

// ratioChart has each row that was decided, against its rival.
func ratioChart(rows []bench.Row) webpage.Chart {
	c := webpage.Chart{Title: "against the rival, with 95% intervals", Bar: 1,
		X: "times as fast as the rival"}
	for i := range rows {
		r := &rows[i]
		if r.RatioLow == nil || r.RatioHigh == nil || r.Ratio == nil {
			continue
		}
		ends := []float64{better(r, *r.RatioLow), better(r, *r.RatioHigh)}
		c.Intervals = append(c.Intervals, webpage.Interval{
			Name: fmt.Sprintf("%s %d / %s", r.Case, r.Batch, r.RivalName),
			Low:  slices.Min(ends), Mid: better(r, *r.Ratio), High: slices.Max(ends)})
	}
	return c
}

// batchCharts have the cases that were measured with several batches: a plot for each unit.
func batchCharts(rows []bench.Row) []webpage.Chart {
	var charts []webpage.Chart
	for _, unit := range []string{"Mops/s", "ns"} {
		c := webpage.Chart{Title: "by batch", X: "entries a batch", Y: unit,
			Lines: linesBy(rows, unit, func(r *bench.Row) *float64 { return r.Ours })}
		c.Lines = slices.DeleteFunc(c.Lines, func(l webpage.Line) bool { return len(l.Points) < 2 })
		charts = append(charts, c)
	}
	return charts
}

// scaleChart has the cost of many beside the cost of one, which every row measured too.
func scaleChart(rows []bench.Row) webpage.Chart {
	return webpage.Chart{Title: "cost over that of one", X: "writers, or queues of a set",
		Y:     "times the cost of one",
		Lines: linesBy(rows, "ns", func(r *bench.Row) *float64 { return r.Ratio })}
}

// linesBy returns a line for each case, over its batches.
func linesBy(rows []bench.Row, unit string, figure func(*bench.Row) *float64) []webpage.Line {
	var lines []webpage.Line
	for i := range rows {
		r := &rows[i]
		y := figure(r)
		if r.Unit != unit || y == nil {
			continue
		}
		k := slices.IndexFunc(lines, func(l webpage.Line) bool { return l.Name == r.Case })
		if k < 0 {
			k, lines = len(lines), append(lines, webpage.Line{Name: r.Case, Dots: true})
		}
		at := webpage.Point{X: float64(r.Batch), Y: *y}
		if n := len(lines[k].Points); n == 0 || lines[k].Points[n-1].X < at.X {
			lines[k].Points = append(lines[k].Points, at) // other rivals measured it again
		}
	}
	return lines
}

// tailCharts have how many messages took longer than a time: a plot for each case.
func tailCharts(rows []bench.Row) []webpage.Chart {
	var charts []webpage.Chart
	for i := range rows {
		t := rows[i].Tail
		if t == nil {
			continue
		}
		c := webpage.Chart{Title: rows[i].Case, X: "ns, one way", Y: "part that took longer",
			Lines: []webpage.Line{tailLine("ours", &t.Ours)}}
		if t.Rival != nil {
			c.Lines = append(c.Lines, tailLine(rows[i].RivalName, t.Rival))
		}
		c.Lines = slices.DeleteFunc(c.Lines, func(l webpage.Line) bool { return len(l.Points) == 0 })
		charts = append(charts, c)
	}
	return charts
}

func tailLine(name string, l *bench.Latencies) webpage.Line {
	line := webpage.Line{Name: name}
	for _, e := range l.Above {
		if e.Part > 0 { // the longest is beyond a logarithmic axis
			line.Points = append(line.Points, webpage.Point{X: e.Ns, Y: e.Part})
		}
	}
	return line
}

// tailTable has the quantiles of rows about single messages.
func tailTable(rows []bench.Row) *table {
	t := &table{columns: []column{left("CASE", 0), left("SIDE", 0), right("MESSAGES", 3),
		right("P50", 0), right("P90", 4), right("P99", 0), right("P99.9", 0), right("P99.99", 0),
		right("MAX", 0), right("PREEMPTED", 2), right("GC", 2), right("PAUSE", 1)}}
	for i := range rows {
		tail := rows[i].Tail
		if tail == nil {
			continue
		}
		sides := []struct {
			name string
			l    *bench.Latencies
		}{{"ours", &tail.Ours}, {rows[i].RivalName, tail.Rival}}
		for _, s := range sides {
			if s.l == nil {
				continue
			}
			cells := []string{rows[i].Case, s.name, strconv.FormatUint(s.l.Messages, 10)}
			for _, ns := range []float64{s.l.P50, s.l.P90, s.l.P99, s.l.P999, s.l.P9999, s.l.Max} {
				cells = append(cells, stage.Short(time.Duration(ns)))
			}
			t.add(append(cells, strconv.FormatUint(s.l.Preempted, 10),
				strconv.FormatUint(s.l.Collections, 10), stage.Short(time.Duration(s.l.LongestPause)))...)
		}
	}
	return t
}
