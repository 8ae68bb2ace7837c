package webpage

import (
	"bytes"
	"encoding/xml"
	"io"
	"math"
	"strings"
	"testing"
)

// A page has every figure and name, plots that are well-formed, and needs nothing from elsewhere.
func TestPage(t *testing.T) {
	p := Page{Title: "all <of> it", Facts: []string{"a machine"}, Sections: []Section{
		{Title: "lines", Text: "over a number", Head: []string{"CASE", "NS"},
			Cells: [][]string{{"one & two", "1.5"}},
			Charts: []Chart{{Title: "by batch", X: "batch", Y: "ns", Lines: []Line{
				{Name: "ours", Dots: true, Points: []Point{{1, 2}, {8, 3}}},
				{Name: "theirs", Points: []Point{{1, 20}, {8, 3000}}}}}}},
		{Title: "intervals", Charts: []Chart{{Title: "ratios", Bar: 1, Intervals: []Interval{
			{"a row", 0.5, 0.6, 0.7}, {"another row", 1.1, 2, 2.5}}}}},
	}}
	var out bytes.Buffer
	if err := p.Write(&out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{"all &lt;of&gt; it", "a machine", "one &amp; two", "by batch",
		"ours", "theirs", "a row", "another row", "intervals"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, part := range []string{" src=", "@import", "<script", "<?xml", "url("} {
		if strings.Contains(text, part) {
			t.Errorf("the page has %q", part)
		}
	}
	if n := strings.Count(text, "</svg>"); n != 2 {
		t.Errorf("%d plots", n)
	}
	for part := range strings.SplitSeq(text, "<figure>") {
		svg, _, found := strings.Cut(part, "</figure>")
		for d := xml.NewDecoder(strings.NewReader(svg)); found; {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("plot: %v", err)
			}
		}
	}
}

// One value is drawn, and what cannot be drawn is an error, not a page without it.
func TestOddCharts(t *testing.T) {
	line := func(points ...Point) Chart {
		return Chart{Title: "odd", Lines: []Line{{"x", points, true}}}
	}
	for _, c := range []struct {
		chart Chart
		ok    bool
	}{
		{line(Point{1, 1}), true}, {line(Point{3, 7}, Point{3, 7}), true}, {line(), false},
		{Chart{Title: "odd"}, false}, {line(Point{1, 0}, Point{2, 5}), false},
		{line(Point{math.NaN(), 1}), false},
		{Chart{Intervals: []Interval{{"x", 0.9, 0.9, 0.9}}}, true},
		{Chart{Title: "odd", Intervals: []Interval{{"x", -1, 1, 2}}}, false},
	} {
		p := Page{Sections: []Section{{Charts: []Chart{c.chart}}}}
		err := p.Write(io.Discard)
		if (err == nil) != c.ok || !c.ok && !strings.Contains(err.Error(), "odd") {
			t.Errorf("%+v: %v", c.chart, err)
		}
	}
}
