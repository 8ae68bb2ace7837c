package command

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/text"
)

// schemaName is the first thing in all JSON that is printed. Within it keys are only added.
const schemaName = "shmctl/1"

// output is how a verb prints what it found.
type output struct {
	format   string
	short    bool // -j
	noHeader bool
	raw      bool
}

// flags adds what every verb with a result has.
func (o *output) flags(cmd *cobra.Command) {
	oneOf(cmd, &o.format, "output", "o", "print a `table`, or json", "table", "json")
	cmd.Flags().BoolVarP(&o.short, "json", "j", false, "same as -o json")
}

func (o *output) tableFlags(cmd *cobra.Command) {
	o.flags(cmd)
	cmd.Flags().BoolVarP(&o.noHeader, "no-header", "H", false, "leave the heading out")
	cmd.Flags().BoolVarP(&o.raw, "numeric", "n", false, "print numbers in full, without k, M, KiB")
}

func (o *output) json() bool { return o.short || o.format == "json" }

// print says a result, as JSON under its key or in lines for people.
func (o *output) print(w io.Writer, key string, result any, lines func(p page) []string) error {
	if o.json() {
		return printJSON(w, key, result)
	}
	return printLines(w, lines(terminalOf(w).page()))
}

// line is what people get of a result that is said in one line.
func line(format string, args ...any) func(page) []string {
	return func(page) []string { return []string{fmt.Sprintf(format, args...)} }
}

// printJSON prints keys and their values as one object on one line, so that a stream of them can be
// read line by line.
func printJSON(w io.Writer, pairs ...any) error {
	line := fmt.Appendf(nil, `{"schema":%q`, schemaName)
	for i := 0; i < len(pairs); i += 2 {
		text, err := json.Marshal(pairs[i+1])
		if err != nil {
			return err
		}
		line = fmt.Appendf(line, ",%q:%s", pairs[i], text)
	}
	_, err := w.Write(append(line, "}\n"...))
	return err
}

// printable keeps what others named from giving orders to a terminal.
func printable(s string) string {
	if text.Printable(s) != s {
		return strconv.Quote(s)
	}
	return s
}

// number prints a count: in full below 100,000, then with three digits and a letter.
func (o *output) number(n uint64) string {
	if o.raw {
		return strconv.FormatUint(n, 10)
	}
	return o.rate(float64(n))
}

// rate prints a number a second.
func (o *output) rate(x float64) string {
	if o.raw || x < 100_000 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return scaled(x, 1000, []string{"k", "M", "G", "T", "P", "E"})
}

// bytes prints a size.
func (o *output) bytes(n uint64) string {
	if o.raw || n < 1024 {
		return strconv.FormatUint(n, 10)
	}
	return scaled(float64(n), 1024, []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"})
}

func scaled(x, step float64, units []string) string {
	i := 0
	// 999.5 would be printed as 1000 of the smaller unit.
	for x /= step; x >= step-0.5 && i+1 < len(units); x /= step {
		i++
	}
	digits := 2
	switch {
	case x >= 99.95:
		digits = 0
	case x >= 9.995:
		digits = 1
	}
	text := strconv.FormatFloat(x, 'f', digits, 64)
	if digits > 0 && units[0] == "KiB" { // most sizes are whole
		text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	}
	return text + units[i]
}

// column of a table. Numbers stand right.
type column struct {
	title string
	right bool
	// spare says when the column is left out of a page that is too narrow: 1 goes first, 0 stays.
	spare int
}

func left(title string, spare int) column  { return column{title, false, spare} }
func right(title string, spare int) column { return column{title, true, spare} }

// page is what a table is printed on. The zero value is as wide as it takes, and plain.
type page struct {
	style
	columns int
}

// table lays out rows in columns. Every row has a cell for each.
type table struct {
	columns []column
	rows    [][]string
	notes   []string // below the table, where there is a heading: else a line is a row
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// note says below the table what is wrong with something, and what to do about it.
func (t *table) note(name string, e *ctl.Problem) {
	if e == nil {
		return
	}
	text := printable(name) + ": " + e.Message
	if e.Hint != nil {
		text += "; " + *e.Hint
	}
	t.notes = append(t.notes, text)
}

// lines returns the table without line ends. Style is applied to the last column of a row after
// everything is aligned, and to the heading as a whole. indent stands before every line.
func (t *table) lines(header bool, p page, indent string) []string {
	titles := make([]string, len(t.columns))
	for i, c := range t.columns {
		titles[i] = c.title
	}
	width := make([]int, len(t.columns))
	for i := range t.columns {
		if header {
			width[i] = len(titles[i])
		}
		for _, r := range t.rows {
			width[i] = max(width[i], utf8.RuneCountInString(r[i]))
		}
	}
	t.fit(width, p.columns-len(indent))
	var out []string
	if header {
		out = append(out, indent+p.bold(t.line(titles, width, style{})))
	}
	for _, r := range t.rows {
		out = append(out, indent+t.line(r, width, p.style))
	}
	if header {
		for _, n := range t.notes {
			out = append(out, indent+n)
		}
	}
	return out
}

// drop takes columns away.
func (t *table) drop(titles ...string) {
	for i := len(t.columns) - 1; i >= 0; i-- {
		if !slices.Contains(titles, t.columns[i].title) {
			continue
		}
		t.columns = slices.Delete(t.columns, i, i+1)
		for k := range t.rows {
			t.rows[k] = slices.Delete(t.rows[k], i, i+1)
		}
	}
}

const gap = 2 // columns of the page between those of the table

// fit sets the width of what has to be left out to -1. The last column is text that may be cut.
func (t *table) fit(width []int, room int) {
	need := -gap
	for _, w := range width {
		need += w + gap
	}
	if last := len(width) - 1; width[last] > lastColumns {
		need -= width[last] - lastColumns
	}
	for spare := 1; room > 0 && need > room && spare <= len(width); spare++ {
		for i, c := range t.columns {
			if c.spare == spare && need > room {
				need -= width[i] + gap
				width[i] = -1
			}
		}
	}
}

// lastColumns is what the last column must have of a page: the longest word for a state.
const lastColumns = len(ctl.StateLockKept)

func (t *table) line(cells []string, width []int, s style) string {
	var b strings.Builder
	for i, cell := range cells {
		if width[i] < 0 {
			continue
		}
		pad := strings.Repeat(" ", max(0, width[i]-utf8.RuneCountInString(cell)))
		last := i == len(t.columns)-1
		if last {
			cell = s.state(cell)
		}
		if b.Len() > 0 {
			b.WriteString(strings.Repeat(" ", gap))
		}
		if t.columns[i].right {
			b.WriteString(pad)
			pad = ""
		}
		b.WriteString(cell)
		if !last {
			b.WriteString(pad)
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// style colours words on a terminal. The words alone say everything.
type style struct{ on bool }

const (
	escBold   = "\x1b[1m"
	escRed    = "\x1b[31m"
	escGreen  = "\x1b[32m"
	escYellow = "\x1b[33m"
	escPlain  = "\x1b[0m"
)

func (s style) bold(text string) string { return s.wrap(escBold, text) }

// state colours by the first word of text.
func (s style) state(text string) string {
	word, _, _ := strings.Cut(text, " ")
	switch word {
	case ctl.StateOpen:
		return s.wrap(escGreen, text)
	case ctl.StateFull, ctl.StateClosed, ctl.StateReleased, ctl.StateStopped:
		return s.wrap(escYellow, text)
	}
	if slices.Contains(ctl.States(), word) {
		return s.wrap(escRed, text)
	}
	return text
}

func (s style) wrap(esc, text string) string {
	if !s.on {
		return text
	}
	return esc + text + escPlain
}

// cut shortens a line to so many columns; escapes take no room, and colour ends with the line.
func cut(line string, columns int) string {
	n := 0
	for i := 0; i < len(line); {
		if line[i] == '\x1b' {
			end := strings.IndexByte(line[i:], 'm')
			if end < 0 {
				return line[:i]
			}
			i += end + 1
			continue
		}
		if n == columns {
			if strings.Contains(line[:i], "\x1b") {
				return line[:i] + escPlain
			}
			return line[:i]
		}
		_, size := utf8.DecodeRuneInString(line[i:])
		i += size
		n++
	}
	return line
}

// terminal is what a writer can show. The zero value is a file or a pipe.
type terminal struct {
	on            bool
	columns, rows int
}

// terminalOf asks what stands behind a writer.
func terminalOf(w io.Writer) terminal {
	f, ok := w.(*os.File)
	if !ok {
		return terminal{}
	}
	columns, rows, ok := windowSize(f)
	if !ok {
		return terminal{}
	}
	// A terminal that does not know its size says 0.
	if columns == 0 || rows == 0 {
		columns, rows = 80, 24
	}
	return terminal{on: true, columns: columns, rows: rows}
}

// page is what fits on the terminal, and in what style.
func (t terminal) page() page {
	colour := t.on && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return page{style: style{on: colour}, columns: t.columns}
}

const (
	escHideCursor = "\x1b[?25l"
	escShowCursor = "\x1b[?25h"
	escToLineEnd  = "\x1b[K"
	escBelow      = "\x1b[J"
)

// screen draws frames over each other: up to the first line, each line over the old one, the rest
// erased behind it. Nothing is cleared before something else stands there, so nothing flickers,
// and what was above stays.
type screen struct {
	w     io.Writer
	lines int // of the last frame
}

func (s *screen) draw(t terminal, lines []string) error {
	// A frame that scrolled could not be drawn over.
	if room := max(1, t.rows-1); len(lines) > room {
		lines = lines[:room]
	}
	var b strings.Builder
	if s.lines == 0 {
		b.WriteString(escHideCursor)
	}
	for range s.lines {
		b.WriteString("\x1b[A")
	}
	b.WriteString("\r")
	for _, l := range lines {
		b.WriteString(cut(l, t.columns))
		b.WriteString(escToLineEnd + "\r\n")
	}
	b.WriteString(escBelow)
	s.lines = len(lines)
	_, err := io.WriteString(s.w, b.String())
	return err
}

// close leaves the last frame and gives the cursor back.
func (s *screen) close() {
	if s.lines > 0 {
		_, _ = io.WriteString(s.w, escShowCursor)
	}
}
