package command

import (
	"strings"
	"unicode/utf8"
)

// column of a table. Numbers stand right.
type column struct {
	title string
	right bool
}

func left(title string) column  { return column{title: title} }
func right(title string) column { return column{title: title, right: true} }

// table lays out rows in columns. A row may be shorter than the heading.
type table struct {
	columns []column
	rows    [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// lines returns the table without line ends. style is applied to the last column of a row after
// everything is aligned, and to the heading as a whole.
func (t *table) lines(header bool, s style) []string {
	width := make([]int, len(t.columns))
	for i, c := range t.columns {
		if header {
			width[i] = len(c.title)
		}
		for _, r := range t.rows {
			if i < len(r) {
				width[i] = max(width[i], utf8.RuneCountInString(r[i]))
			}
		}
	}
	var out []string
	if header {
		titles := make([]string, len(t.columns))
		for i, c := range t.columns {
			titles[i] = c.title
		}
		out = append(out, s.bold(t.line(titles, width, style{})))
	}
	for _, r := range t.rows {
		out = append(out, t.line(r, width, s))
	}
	return out
}

func (t *table) line(cells []string, width []int, s style) string {
	var b strings.Builder
	for i, cell := range cells {
		pad := strings.Repeat(" ", max(0, width[i]-utf8.RuneCountInString(cell)))
		last := i == len(t.columns)-1
		if last {
			cell = s.state(cell)
		}
		if i > 0 {
			b.WriteString("  ")
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
	switch strings.TrimSuffix(word, ":") {
	case "open", "alive":
		return s.wrap(escGreen, text)
	case "full", "closed", "no-reader", "released":
		return s.wrap(escYellow, text)
	case "error", "overrun", "dead-reader", "dead", "lock-lost", "damaged-lane":
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
