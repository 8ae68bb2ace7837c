package webpage

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"math"
	"regexp"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Chart is one plot: lines over a number, or intervals beside names.
type Chart struct {
	Title      string
	X, Y       string // what the axes say
	LogX, LogY bool
	Lines      []Line
	Intervals  []Interval // in place of lines, the first one on top
	Bar        float64    // a vertical line, what the intervals are held against, if not 0
}

// Line is what one thing cost. Points have X in ascending order, above 0 on a logarithmic axis.
type Line struct {
	Name   string
	Points []Point
	Dots   bool // each point was measured: show where
}

// Point is a point.
type Point struct{ X, Y float64 }

// Interval holds a value.
type Interval struct {
	Name           string
	Low, Mid, High float64
}

const (
	wide = 17 * vg.Centimeter
	high = 10 * vg.Centimeter
	// rowHigh is what an interval takes.
	rowHigh = vg.Centimeter / 2
)

// svg returns the picture as an element that a page can hold.
func (c *Chart) svg() ([]byte, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
	p.Legend.Top, p.Legend.XOffs = true, -vg.Centimeter/2
	p.Add(plotter.NewGrid())
	add, height := c.addLines, high
	if c.Intervals != nil {
		add, height = c.addIntervals, vg.Length(len(c.Intervals)+5)*rowHigh
	}
	if err := add(p); err != nil {
		return nil, err
	}
	for _, axis := range []struct {
		a   *plot.Axis
		log bool
	}{{&p.X, c.LogX}, {&p.Y, c.LogY}} {
		if err := scale(axis.a, axis.log); err != nil {
			return nil, err
		}
	}
	canvas := vgsvg.New(wide, height)
	p.Draw(draw.New(canvas))
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, err
	}
	return head.ReplaceAll(out.Bytes(), nil), nil
}

// scale makes an axis logarithmic where it is to be, which all its values have to allow.
func scale(a *plot.Axis, log bool) error {
	switch {
	case a.Min > a.Max:
		return errNothing
	case !log:
		return nil
	case a.Min <= 0:
		return fmt.Errorf("%v is not on a logarithmic axis", a.Min)
	case a.Max < 2*a.Min: // one value, or nearly: leave room beside it
		a.Min, a.Max = a.Min/1.5, a.Max*1.5
	}
	a.Scale, a.Tick.Marker = plot.LogScale{}, logTicks{}
	return nil
}

var errNothing = errors.New("nothing to draw")

// head is what a file begins with and an element of a page must not.
var head = regexp.MustCompile(`^<\?xml[^>]*>\s*`)

func (c *Chart) addLines(p *plot.Plot) error {
	for i, l := range c.Lines {
		points := make(plotter.XYs, len(l.Points))
		for k, at := range l.Points {
			points[k] = plotter.XY(at)
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		line.Color, line.Width = plotutil.Color(i), vg.Points(1.5)
		p.Add(line)
		p.Legend.Add(l.Name, line)
		if !l.Dots {
			continue
		}
		dots, err := plotter.NewScatter(points)
		if err != nil {
			return err
		}
		dots.Color, dots.Shape = plotutil.Color(i), draw.CircleGlyph{}
		p.Add(dots)
	}
	return nil
}

func (c *Chart) addIntervals(p *plot.Plot) error {
	n := len(c.Intervals)
	points, errs := make(plotter.XYs, n), make(plotter.XErrors, n)
	names := make([]string, n)
	for i, v := range c.Intervals {
		y := n - 1 - i
		names[y] = v.Name
		points[y] = plotter.XY{X: v.Mid, Y: float64(y)}
		errs[y].Low, errs[y].High = v.Mid-v.Low, v.High-v.Mid
	}
	both := struct {
		plotter.XYs
		plotter.XErrors
	}{points, errs}
	bars, err := plotter.NewXErrorBars(both)
	if err != nil {
		return err
	}
	dots, err := plotter.NewScatter(points)
	if err != nil {
		return err
	}
	dots.Shape, dots.Color = draw.CircleGlyph{}, plotutil.Color(2)
	p.Add(bars, dots)
	if c.Bar != 0 {
		line, err := plotter.NewLine(plotter.XYs{{X: c.Bar, Y: -1}, {X: c.Bar, Y: float64(n)}})
		if err != nil {
			return err
		}
		line.Color = color.Gray{Y: 90}
		line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
		p.Add(line)
	}
	p.NominalY(names...)
	return nil
}

// logTicks has a named tick at each power of ten, or of two where the axis has few of these.
type logTicks struct{}

func (logTicks) Ticks(low, high float64) []plot.Tick {
	base := 10.0
	if high/low < 4 {
		return plot.DefaultTicks{}.Ticks(low, high)
	} else if high/low < 1000 {
		base = 2
	}
	var ticks []plot.Tick
	for e := math.Floor(math.Log(low) / math.Log(base)); ; e++ {
		at := math.Pow(base, e)
		if at > high*1.0001 {
			return ticks
		}
		if at >= low*0.9999 {
			ticks = append(ticks, plot.Tick{Value: at, Label: strconv.FormatFloat(at, 'g', -1, 64)})
		}
	}
}
