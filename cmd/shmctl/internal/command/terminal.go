package command

import (
	"io"
	"os"
	"strings"
)

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
