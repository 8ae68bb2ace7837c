package webpage

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"

	draw "github.com/go-analyze/charts/chartdraw"
	"github.com/go-analyze/charts/chartdraw/drawing"
)

// Chart is one plot on logarithmic axes: lines over a number, or intervals beside names.
type Chart struct {
	Title     string
	X, Y      string // what the axes say
	Lines     []Line
	Intervals []Interval // in place of lines, the first one on top
	Bar       float64    // a vertical line, what the intervals are held against, if not 0
}

// Line is what one thing cost. Points have X in ascending order.
type Line struct {
	Name   string
	Points []Point
	Dots   bool // each point was measured: show where
}

// Point is a point. Both coordinates are above 0.
type Point struct{ X, Y float64 }

// Interval holds a value. All three are above 0.
type Interval struct {
	Name           string
	Low, Mid, High float64
}

// In pixels: a plot without its legend, and what an interval takes.
const (
	wide, high = 620, 380
	rowHigh    = 19
)

var grid = draw.Style{StrokeColor: drawing.Color{R: 215, G: 215, B: 215, A: 255}, StrokeWidth: 1}

// svg returns the picture as an element that a page can hold.
func (c *Chart) svg() ([]byte, error) {
	x, y := newAxis(), newAxis()
	p := draw.Chart{Title: c.Title, TitleStyle: draw.Style{FontStyle: draw.FontStyle{FontSize: 12}},
		Width: wide, Height: high, ColorPalette: draw.AlternateColorPalette}
	p.Background.Padding = draw.Box{Top: 40, Left: 30, Right: 30, Bottom: 15, IsSet: true}
	if c.Intervals != nil {
		c.addIntervals(&p, x, y)
	} else {
		c.addLines(&p, x, y)
	}
	if err := errors.Join(x.settle(), y.settle()); err != nil {
		return nil, err
	}
	// The library draws the first y axis at the right: the second one takes its place.
	p.XAxis = draw.XAxis{Name: c.X, Range: x, GridMajorStyle: grid, GridMinorStyle: grid}
	p.YAxis = draw.YAxis{Range: y, Style: draw.Hidden()}
	p.YAxisSecondary = draw.YAxis{Name: c.Y, Range: y, GridMajorStyle: grid, GridMinorStyle: grid}
	var out bytes.Buffer
	if err := p.Render(draw.SVG, &out); err != nil {
		return nil, err
	}
	// Without a size of its own it would be as wide as the page.
	size := fmt.Sprintf(`<svg width="%d" height="%d" `, p.Width, p.Height)
	return bytes.Replace(out.Bytes(), []byte("<svg "), []byte(size), 1), nil
}

// addLines draws the lines, and their names beside the plot, where they hide nothing.
func (c *Chart) addLines(p *draw.Chart, x, y *axis) {
	longest := 0
	for _, l := range c.Lines {
		s := draw.ContinuousSeries{Name: l.Name, YAxis: draw.YAxisSecondary}
		for _, at := range l.Points {
			s.XValues, s.YValues = append(s.XValues, x.take(at.X)), append(s.YValues, y.take(at.Y))
		}
		if s.Style.StrokeWidth = 2; l.Dots {
			s.Style.DotWidth = 3
		}
		p.Series = append(p.Series, s)
		longest = max(longest, len(l.Name))
	}
	beside := 60 + 6*longest
	p.Width += beside
	p.Background.Padding.Right += beside
	names := draw.Legend(p)
	p.Elements = append(p.Elements, func(r draw.Renderer, plot draw.Box, s draw.Style) {
		plot.Left = plot.Right + 10
		names(r, plot, s)
	})
}

func (c *Chart) addIntervals(p *draw.Chart, x, y *axis) {
	n := len(c.Intervals)
	p.Height = (n + 6) * rowHigh
	y.Min, y.Max, y.names = -1, float64(n), make([]draw.Tick, n)
	add := func(xs, ys []float64, style draw.Style) {
		p.Series = append(p.Series, draw.ContinuousSeries{
			YAxis: draw.YAxisSecondary, XValues: xs, YValues: ys, Style: style})
	}
	blue := p.ColorPalette.GetSeriesColor(0)
	for i, v := range c.Intervals {
		row := float64(n - 1 - i)
		y.names[n-1-i] = draw.Tick{Value: row, Label: v.Name}
		add([]float64{x.take(v.Low), x.take(v.High)}, []float64{row, row},
			draw.Style{StrokeColor: drawing.ColorBlack, StrokeWidth: 1})
		add([]float64{x.take(v.Mid)}, []float64{row}, draw.Style{DotWidth: 3, DotColor: blue})
	}
	if c.Bar != 0 {
		at := x.take(c.Bar)
		add([]float64{at, at}, []float64{y.Min, y.Max}, draw.Style{
			StrokeColor: drawing.ColorBlack, StrokeWidth: 1, StrokeDashArray: []float64{4, 3}})
	}
}

// axis is a range of logarithms, or of rows that have names.
type axis struct {
	draw.ContinuousRange
	names []draw.Tick
	bad   error
}

func newAxis() *axis {
	return &axis{ContinuousRange: draw.ContinuousRange{Min: math.Inf(1), Max: math.Inf(-1)}}
}

// take returns where a value is on the axis, and makes the axis hold it.
func (a *axis) take(v float64) float64 {
	at := math.Log10(v)
	if math.IsNaN(at) || math.IsInf(at, 0) {
		a.bad = fmt.Errorf("%v is not on a logarithmic axis", v)
	}
	a.Min, a.Max = min(a.Min, at), max(a.Max, at)
	return at
}

var errNothing = errors.New("nothing to draw")

// settle says whether the axis can be drawn, and leaves room beside a single value.
func (a *axis) settle() error {
	if a.bad != nil || a.Min > a.Max {
		return cmp.Or(a.bad, errNothing)
	}
	if a.names == nil && a.Max-a.Min < math.Log10(2) {
		a.Min, a.Max = a.Min-math.Log10(1.5), a.Max+math.Log10(1.5)
	}
	return nil
}

// GetTicks returns the names, or each power of ten, or of two where the axis has few of these, or
// round values where it has few of both.
func (a *axis) GetTicks(draw.ValueFormatter) []draw.Tick {
	if a.names != nil {
		return a.names
	}
	low, high := math.Pow(10, a.Min), math.Pow(10, a.Max)
	base, step := 10.0, 0.0
	switch {
	case high < 8*low:
		if step = math.Pow(10, math.Floor(math.Log10(high-low))); high-low < 3*step {
			step /= 5
		}
	case high < 1000*low:
		base = 2
	}
	var ticks []draw.Tick
	at := math.Pow(base, math.Ceil(math.Log(low*0.9999)/math.Log(base)))
	if step != 0 {
		at = math.Ceil(low/step) * step
	}
	for at <= high*1.0001 {
		name := strconv.FormatFloat(at, 'g', 4, 64)
		ticks = append(ticks, draw.Tick{Value: math.Log10(at), Label: name})
		if step == 0 {
			at *= base
		} else {
			at += step
		}
	}
	return ticks
}
