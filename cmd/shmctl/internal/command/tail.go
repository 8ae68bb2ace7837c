package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
)

// tail is the verb that shows entries.
type tail struct {
	output
	one    target
	n      int
	follow bool
	every  time.Duration
}

func newTail() *cobra.Command {
	t := &tail{}
	cmd := &cobra.Command{
		Use:   "tail NAME",
		Short: "Show the last entries of a queue, without taking them",
		Long: `Show the last entries of each lane of a queue, without taking them: not a byte changes.

STATE is waiting, peeked (the application has it in hand) or released: it was read, and its place
was not used again yet. FLAGS is the kind of event in an event queue. CONTEXT, DATA and TAG are in
hex; a context of - belongs to no operation. What was released may just be overwritten; what was not
is whole.

Order is kept within a lane only. With -f, what is new is shown as it comes; a queue that is created
again under its name is followed too. Entries that were overwritten between two looks are counted.`,
		Example: `  shmctl tail orders            the last ten of each lane
  shmctl tail orders -c 100 -H  a hundred, without heading
  shmctl tail orders -f         and then what comes
  shmctl tail orders -j | jq '.tail.lanes[].entries[] | select(.failure)'`,
		Args: takesOne("NAME"),
		RunE: t.run,
	}
	t.flags(cmd)
	t.one.flags(cmd)
	f := cmd.Flags()
	f.BoolVarP(&t.noHeader, "no-header", "H", false, "leave the heading out")
	f.IntVarP(&t.n, "count", "c", 10, "entries of each lane (`n`)")
	f.BoolVarP(&t.follow, "follow", "f", false, "show what comes, until interrupted")
	f.DurationVar(&t.every, "interval", 100*time.Millisecond, "time between two looks with -f")
	return cmd
}

func (t *tail) run(cmd *cobra.Command, args []string) error {
	if t.n < 0 {
		return wrong("--count is %d, and must not be negative", t.n)
	}
	if t.every <= 0 {
		return wrong("--interval must be above 0, not %v", t.every)
	}
	d, err := t.one.open(args[0])
	if err != nil {
		return err
	}
	defer d.Close()
	m := ctl.NewMonitor(d)
	defer m.Close()
	got, err := m.Entries(args[0], t.n)
	if err != nil {
		return t.one.failed(args[0], err)
	}
	if err := t.print(cmd.OutOrStdout(), got); err != nil || !t.follow {
		return err
	}
	t.noHeader = true
	return t.goOn(cmd.Context(), m, args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
}

// goOn prints what comes until the user has seen enough.
func (t *tail) goOn(ctx context.Context, m *ctl.Monitor, name string, w, stderr io.Writer) error {
	gone := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(t.every):
		}
		got, err := m.Entries(name, math.MaxInt)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if !gone && !t.json() {
				fmt.Fprintf(stderr, "%s is gone; if it comes again it is followed\n",
					printable(name))
			}
			gone = true
			continue
		case err != nil:
			return t.one.failed(name, err)
		}
		gone = false
		if len(got.Lanes) == 0 {
			continue
		}
		if err := t.print(w, got); err != nil {
			return err
		}
	}
}

func (t *tail) print(w io.Writer, got ctl.Tail) error {
	return t.output.print(w, "tail", got, func(p page) []string {
		return tailLines(&got, &t.output, p)
	})
}

func tailLines(got *ctl.Tail, o *output, p page) []string {
	t := &table{columns: []column{right("LANE", 0), right("INDEX", 0), left("STATE", 3),
		right("CONTEXT", 0), left("FLAGS", 0), right("LEN", 0), left("BUF", 1), right("DATA", 2),
		right("TAG", 0), right("SRC", 1), left("DETAIL", 0)}}
	for i := range got.Lanes {
		l := &got.Lanes[i]
		row := strconv.Itoa(l.Row)
		if l.Error != nil {
			t.say(row, orDash(l.State, printable))
			t.note("lane "+row, l.Error)
		}
		if l.Missed > 0 {
			t.say(row, fmt.Sprintf("%d overwritten before they were seen", l.Missed))
		}
		for k := range l.Entries {
			t.add(append([]string{row}, entryRow(&l.Entries[k])...)...)
		}
	}
	return t.lines(!o.noHeader, p, "")
}

// say adds a row that has nothing but a text.
func (t *table) say(first, text string) {
	cells := make([]string, len(t.columns))
	cells[0], cells[len(cells)-1] = first, text
	t.add(cells...)
}

func entryRow(e *ctl.Entry) []string {
	decimal := func(n uint64) string { return strconv.FormatUint(n, 10) }
	hex := func(n uint64) string { return "0x" + strconv.FormatUint(n, 16) }
	return []string{decimal(e.Index), e.State, orDash(e.Context, hex), flagWords(e), decimal(e.Len),
		orDash(e.Buf, func(p ctl.Place) string { return fmt.Sprintf("%d+%#x", p.Region, p.Offset) }),
		hex(e.Data), hex(e.Tag), orDash(e.Src, decimal), entryDetail(e)}
}

// flagWords are the flags as the library prints them: names, and in hex what has none.
func flagWords(e *ctl.Entry) string {
	if e.Event != nil && e.Event.Name != nil {
		return *e.Event.Name
	}
	if e.FlagBits == 0 {
		return "-"
	}
	return cq.Flags(e.FlagBits).String()
}

func entryDetail(e *ctl.Entry) string {
	var words []string
	if f := e.Failure; f != nil {
		name := orDash(f.Name, printable)
		if f.Name == nil {
			name = strconv.Itoa(int(f.Errno))
		}
		text := name + ": " + f.Message
		if f.ProvErrno != 0 {
			text += fmt.Sprintf(" (provider %d)", f.ProvErrno)
		}
		words = append(words, text)
		if f.OverrunBytes != 0 {
			words = append(words, fmt.Sprintf("%d bytes did not fit", f.OverrunBytes))
		}
		if f.Data != "" {
			words = append(words, "detail "+f.Data)
		}
	}
	if v := e.Event; v != nil {
		if v.FID != nil {
			words = append(words, fmt.Sprintf("of %s %016x.%d", printable(v.FID.Kind), v.FID.ID,
				v.FID.Generation))
		}
		if v.Payload != "" {
			words = append(words, "payload "+v.Payload)
		}
	}
	if e.Solicited {
		words = append(words, "solicited")
	}
	return strings.Join(words, ", ")
}
