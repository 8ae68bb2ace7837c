package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
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
	f := cmd.Flags()
	f.StringVarP(&o.format, "output", "o", "table", "print a `table`, or json")
	f.BoolVarP(&o.short, "json", "j", false, "same as -o json")
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

func (o *output) tableFlags(cmd *cobra.Command) {
	o.flags(cmd)
	cmd.Flags().BoolVarP(&o.noHeader, "no-header", "H", false, "leave the heading out")
	cmd.Flags().BoolVarP(&o.raw, "numeric", "n", false, "print numbers in full, without k, M, KiB")
}

// check judges the flags after they were parsed.
func (o *output) check(cmd *cobra.Command) error {
	if o.format != "table" && o.format != "json" {
		return &usageError{verb: verbPath(cmd),
			err: fmt.Errorf("output %q is neither table nor json", o.format)}
	}
	return nil
}

func (o *output) json() bool { return o.short || o.format == "json" }

// played runs a tool to its end, shows how far it is on a terminal, and prints what it found, for
// people or as JSON under its key. show is nil without a terminal.
func played[R interface {
	comparable
	Print(io.Writer)
}](cmd *cobra.Command, o *output, key string,
	run func(show func(format string, args ...any)) (R, error)) error {
	p := &progress{w: cmd.ErrOrStderr(), term: terminalOf(cmd.ErrOrStderr())}
	var show func(format string, args ...any)
	if p.term.on {
		show = p.line
	}
	report, err := run(show)
	p.clear()
	var none R
	switch {
	case report == none:
	case o.json():
		text, e := json.Marshal(report)
		if e == nil {
			_, e = fmt.Fprintf(cmd.OutOrStdout(), `{"schema":%q,%q:%s}`+"\n", schemaName, key, text)
		}
		if e != nil {
			return errors.Join(err, e)
		}
	default:
		report.Print(cmd.OutOrStdout())
	}
	if err != nil {
		return opFailed(verbPath(cmd), "", err)
	}
	return nil
}

// printJSON prints one object on one line, so that a stream of them can be read line by line.
func printJSON(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// printable keeps what others named from giving orders to a terminal.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// number prints a count: in full below 100,000, then with three digits and a letter.
func (o *output) number(n uint64) string {
	if o.raw || n < 100_000 {
		return strconv.FormatUint(n, 10)
	}
	return scaled(float64(n), 1000, []string{"k", "M", "G", "T", "P", "E"})
}

// rate prints a number a second.
func (o *output) rate(x float64) string {
	if o.raw || x < 100_000 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return scaled(x, 1000, []string{"k", "M", "G", "T"})
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
