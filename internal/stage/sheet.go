package stage

import (
	"cmp"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Sheet is what a run found, in the order in which it is said: for people, or as a document. The
// zero value is empty.
type Sheet struct{ parts []part }

// part is a text, or a table if it has rows or titles.
type part struct {
	text   string
	titles []string
	rows   [][]string
}

// Text says a line.
func (s *Sheet) Text(format string, args ...any) {
	s.parts = append(s.parts, part{text: fmt.Sprintf(format, args...)})
}

// Table begins a table. Facts that no title is needed for stand in one with none.
func (s *Sheet) Table(titles ...string) { s.parts = append(s.parts, part{titles: titles}) }

// Row adds one to the table that began last, with a cell for each title; without titles it has a
// name and a value. Times are rounded to what can be read.
func (s *Sheet) Row(cells ...any) {
	if n := len(s.parts); n == 0 || s.parts[n-1].text != "" {
		s.Table()
	}
	row := make([]string, len(cells))
	for i, c := range cells {
		if d, ok := c.(time.Duration); ok {
			c = d.Round(10 * time.Microsecond)
		}
		row[i] = fmt.Sprint(c)
	}
	t := &s.parts[len(s.parts)-1]
	t.rows = append(t.rows, row)
}

// Short is a time with three digits.
func Short(d time.Duration) string {
	for unit := time.Duration(1); unit <= time.Second; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit).String()
		}
	}
	return d.Round(time.Second).String()
}

// Each adds a row for each of some texts.
func (s *Sheet) Each(name string, texts []string) {
	for _, text := range texts {
		s.Row(name, text)
	}
}

// Notes are the first things that a run found, in words; all are counted elsewhere.
type Notes []string

// mostNotes bounds them.
const mostNotes = 40

// Add adds one, unless there are enough.
func (n *Notes) Add(format string, args ...any) {
	if len(*n) < mostNotes {
		*n = append(*n, fmt.Sprintf(format, args...))
	}
}

// Counts adds a row for each count of a struct, see [CountsOf].
func (s *Sheet) Counts(of any) {
	for _, c := range CountsOf(of) {
		s.Row(c.Text, *c.N)
	}
}

// Count is one number of a struct, with its name in JSON and what people read.
type Count struct {
	Key, Text string
	N         *uint64
}

// CountsOf lists the counts of a struct that is pointed to, those of embedded structs in their
// place: its fields of type uint64 with a tag "count", which says what people read; if that is
// empty they read the name in JSON.
func CountsOf(of any) (all []Count) {
	v := reflect.ValueOf(of).Elem()
	for _, f := range reflect.VisibleFields(v.Type()) {
		if text, ok := f.Tag.Lookup("count"); ok {
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			n := v.FieldByIndex(f.Index).Addr().Interface().(*uint64)
			all = append(all, Count{key, cmp.Or(text, key), n})
		}
	}
	return all
}

// Add adds the counts of one struct to those of another one that have the same keys.
func Add(to, other any) {
	more := map[string]uint64{}
	for _, c := range CountsOf(other) {
		more[c.Key] = *c.N
	}
	for _, c := range CountsOf(to) {
		*c.N += more[c.Key]
	}
}

// Print writes it in columns. Those that have only numbers stand right.
func (s *Sheet) Print(w io.Writer) {
	for i, p := range s.parts {
		if i > 0 && (p.text == "" || s.parts[i-1].text == "") {
			fmt.Fprintln(w)
		}
		if p.text != "" {
			fmt.Fprintln(w, p.text)
			continue
		}
		p.print(w)
	}
}

func (p part) print(w io.Writer) {
	rows, width, right := p.rows, []int{}, []bool{}
	if p.titles != nil {
		rows = slices.Concat([][]string{p.titles}, rows)
	}
	for r, row := range rows {
		for i, cell := range row {
			if r == 0 {
				width, right = append(width, 0), append(right, p.titles != nil)
			}
			width[i] = max(width[i], utf8.RuneCountInString(cell))
			if (r > 0 || p.titles == nil) && strings.Trim(cell, "0123456789.µmnsh") != "" {
				right[i] = false
			}
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if right[i] {
				cell, pad = pad+cell, ""
			}
			b.WriteString(cell + pad + "  ")
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// Markdown writes it as a document.
func (s *Sheet) Markdown(w io.Writer) {
	for i, p := range s.parts {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if p.text != "" {
			fmt.Fprintln(w, p.text)
			continue
		}
		titles := p.titles
		if titles == nil {
			titles = []string{"", ""}
		}
		line := func(cells []string) {
			for _, cell := range cells {
				fmt.Fprint(w, strings.TrimRight("| "+strings.ReplaceAll(cell, "|", "/"), " "), " ")
			}
			fmt.Fprintln(w, "|")
		}
		line(titles)
		fmt.Fprintln(w, strings.Repeat("|---", len(titles))+"|")
		for _, row := range p.rows {
			line(row)
		}
	}
}
