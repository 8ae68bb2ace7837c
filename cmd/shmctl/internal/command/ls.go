package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/shm"
)

func newList() *cobra.Command {
	l := &look{render: listAll}
	cmd := &cobra.Command{
		Use:     "ls [NAME|GLOB]...",
		Aliases: []string{"list"},
		Short:   "List queues, one a line, and what stands beside them",
		Long: `List completion queues and event queues, one a line, then counters, address vectors, the
bells of processes that wait for several queues, and endpoints (kind fabric) with their outboxes and
groups: all of the directory, or those that are named.

FORMAT is events for an event queue. SLOTS is what each lane holds, LANES how many writers are
attached of how many can be. DEPTH counts entries that take up room, FULL% how full the fullest lane
is, HIGH the most entries that ever waited in one. POSTED and READ count entries, WAKES the system
calls with which writers woke the reader, SUPPR the publishes that needed none. With -w, IN-AGO and
OUT-AGO say how long ago something was seen to be posted and read, > if not since the first look.

STATE is one word, here, in show and in JSON, the first that applies of: version (made by another
version of the library), denied (of another user), corrupt (damaged, or a lane is), error, closed
(destroyed), overrun (entries were lost), dead (its owner died, or of a counter or group all who had
it open), lock-kept (its owner died, and a child that it forked keeps the lock), lock-lost (it lives
without the lock), released (left to a successor, or a persistent counter that nobody has open),
stopped (by a signal or debugger), full (a lane is), open. Below the table is what there is to say.

Numbers of a queue in use are each true at some moment, not all at the same one. A directory that
--dir names must exist. One that $` + shm.EnvDir + ` names may come later: that it does not exist
is said on standard error, and the list is empty.`,
		Example: `  shmctl ls                     all queues of this user
  shmctl ls 'order*' -w         those that match, once a second
  shmctl ls -w 200ms -H         five times a second, without heading
  shmctl ls -j | jq '.queues[] | select(.depth > 0) | .name'`,
		RunE: l.run,
	}
	l.flags(cmd)
	return cmd
}

// listAll is the table of queues, and one of the other objects if there are any.
func listAll(all found, o *output, p page) []string {
	var out []string
	if len(all.queues) > 0 || len(all.objects) == 0 {
		out = listLines(all.queues, o, p)
	}
	if len(all.objects) == 0 {
		return out
	}
	if len(out) > 0 {
		out = append(out, "")
	}
	return append(out, objectLines(all.objects, o, p)...)
}

// listLines is the table of queues. Rates stand beside totals once there are any.
func listLines(queues []ctl.Queue, o *output, p page) []string {
	rates := false
	for i := range queues {
		rates = rates || queues[i].PerSecond != nil
	}
	t := &table{columns: []column{left("NAME", 0), left("FORMAT", 2), right("SLOTS", 5),
		right("LANES", 7), right("DEPTH", 0), right("FULL%", 0), right("HIGH", 3),
		right("POSTED", 6), right("READ", 6), right("WAKES", 4), right("SUPPR", 1)}}
	if rates {
		t.columns = append(t.columns, right("IN/s", 0), right("OUT/s", 0), right("WAKES/s", 8),
			right("IN-AGO", 7), right("OUT-AGO", 7))
	}
	t.columns = append(t.columns, right("SIZE", 3), left("READER", 9), left("STATE", 0))
	for i := range queues {
		t.add(listRow(&queues[i], rates, o)...)
		notesOf(t, &queues[i])
	}
	return t.lines(!o.noHeader, p, "")
}

// notesOf says below a table what does not fit a cell.
func notesOf(t *table, q *ctl.Queue) {
	t.note(q.Name, q.Error)
	for i := range q.Lanes {
		t.note(fmt.Sprintf("%s, lane %d", q.Name, q.Lanes[i].Row), q.Lanes[i].Error)
	}
}

func listRow(q *ctl.Queue, rates bool, o *output) []string {
	num := func(n *uint64) string { return orDash(n, o.number) }
	format := orDash(q.Format, printable)
	if q.Kind != nil && *q.Kind != "queue" {
		format = *q.Kind
	}
	row := []string{printable(q.Name), format, num(q.Capacity), lanesOf(q),
		num(q.Depth), fullest(q), num(q.HighWater), num(q.Posted), num(q.Read), num(q.Wakes),
		num(q.WakesSuppressed)}
	if rates {
		if r := q.PerSecond; r != nil {
			row = append(row, o.rate(r.Posted), o.rate(r.Read), o.rate(r.Wakes))
		} else {
			row = append(row, "-", "-", "-")
		}
		row = append(row, o.since(q.SincePosted), o.since(q.SinceRead))
	}
	return append(row, orDash(q.SizeBytes, o.bytes), processWords(q.Reader),
		orDash(q.State, printable))
}

// since prints how long nothing came.
func (o *output) since(s *ctl.Since) string {
	if s == nil {
		return "-"
	}
	text := duration(s.Ns)
	if o.raw {
		text = strconv.FormatInt(s.Ns, 10)
	}
	if s.More {
		return ">" + text
	}
	return text
}

func orDash[T any](v *T, f func(T) string) string {
	if v == nil {
		return "-"
	}
	return f(*v)
}

func lanesOf(q *ctl.Queue) string {
	if q.MaxLanes == nil {
		return "-"
	}
	writers := 0
	for i := range q.Lanes {
		if l := &q.Lanes[i]; !l.Own && l.Life != nil && *l.Life == "alive" {
			writers++
		}
	}
	return fmt.Sprintf("%d/%d", writers, *q.MaxLanes)
}

// fullest returns how full the fullest lane is: a lane that is full stops its writer, whatever
// room the others have.
func fullest(q *ctl.Queue) string {
	if q.Capacity == nil {
		return "-"
	}
	var most uint64
	for i := range q.Lanes {
		if d := q.Lanes[i].Depth; d != nil {
			most = max(most, *d)
		}
	}
	return strconv.FormatFloat(100*float64(most)/float64(*q.Capacity), 'f', 1, 64)
}

// processWords names a process: its number, its command if known, and what is wrong with it.
func processWords(p *ctl.Process) string {
	if p == nil || p.PID == nil {
		return "-"
	}
	words := strconv.Itoa(*p.PID)
	if p.Command != nil {
		words += " " + *p.Command
	}
	switch {
	case p.Life != nil && *p.Life != "alive":
		words += " (" + *p.Life + ")"
	case p.Stopped != nil && *p.Stopped:
		words += " (stopped)"
	}
	return words
}

// look is what ls and show have in common: which queues, how often, how printed.
type look struct {
	output
	target
	every  time.Duration
	render func(f found, o *output, p page) []string
	needs  bool // a pattern must match something
}

// found is what there was to be seen.
type found struct {
	queues  []ctl.Queue
	objects []ctl.Object
}

func (f found) empty() bool { return len(f.queues) == 0 && len(f.objects) == 0 }

func (l *look) flags(cmd *cobra.Command) {
	l.tableFlags(cmd)
	l.target.flags(cmd)
	f := cmd.Flags()
	f.DurationVarP(&l.every, "watch", "w", 0,
		"look again every `interval`, as 200ms; 1s if none is given")
	f.Lookup("watch").NoOptDefVal = "1s"
	cmd.ValidArgsFunction = l.names(math.MaxInt, true, cobra.ShellCompDirectiveNoFileComp)
}

func (l *look) run(cmd *cobra.Command, args []string) error {
	if l.every < 0 || cmd.Flags().Changed("watch") && l.every == 0 {
		return wrong("the interval must be above 0, not %v", l.every)
	}
	for _, pattern := range args {
		if _, err := path.Match(pattern, ""); err != nil {
			return wrong("pattern %q: %w", pattern, err)
		}
	}
	if l.mayBeEmpty(args) {
		l.sayAbsent(cmd.ErrOrStderr())
	}
	src := &source{path: l.dir}
	defer src.close()
	if l.every > 0 {
		return l.watch(cmd.Context(), cmd.OutOrStdout(), src, args)
	}
	all, failed, err := l.collect(src, args)
	if err != nil {
		return err
	}
	if !all.empty() || len(failed) == 0 {
		if err := l.print(cmd, all); err != nil {
			return err
		}
	}
	return errors.Join(failed...)
}

// mayBeEmpty reports whether nothing in args must exist.
func (l *look) mayBeEmpty(args []string) bool { return !l.needs && onlyPatterns(args) }

// onlyPatterns reports whether nothing in args is a name.
func onlyPatterns(args []string) bool {
	return !slices.ContainsFunc(args, func(a string) bool { return !isPattern(a) })
}

func isPattern(arg string) bool { return strings.ContainsAny(arg, `*?[\`) }

// collect looks at the queues and other objects that args name. What was named itself and cannot be
// looked at is a failure; what only matches a pattern, or is just there, shows its error in its
// place.
func (l *look) collect(src *source, args []string) (all found, failed []error, err error) {
	if err := src.refresh(); err != nil {
		// Before the first queue was made there is no directory: that is an empty list.
		if errors.Is(err, fs.ErrNotExist) && l.dir == "" && l.mayBeEmpty(args) {
			return all, nil, nil
		}
		return all, nil, opFailed(strings.Join(args, " "), err)
	}
	if len(args) == 0 {
		if all.queues, err = src.monitor.List(); err == nil {
			all.objects, err = ctl.Objects(src.dir)
		}
		if err != nil {
			err = opFailed("", err)
		}
		return all, nil, err
	}
	seen := map[string]bool{}
	for _, arg := range args {
		queues, objects, err := ctl.Names(src.dir)
		if err != nil {
			return all, nil, opFailed(arg, err)
		}
		if isPattern(arg) {
			if n := all.matching(src, arg, queues, objects, seen); n == 0 && l.needs {
				failed = append(failed, &opError{arg, &ctl.Problem{Code: ctl.CodeNotFound,
					Message: "nothing in " + printable(pathOf(l.dir)) + " matches", Hint: new(listHint(l.dir))}})
			}
		} else if !seen[arg] {
			if err := all.named(src, arg, slices.Contains(objects, arg)); err != nil {
				failed = append(failed, l.failed(arg, err))
			}
			seen[arg] = true
		}
	}
	for name := range src.seen {
		if !seen[name] { // it went, and the monitor finds that and lets go of it
			_, _ = src.monitor.Show(name)
		}
	}
	src.seen = seen
	return all, failed, nil
}

// named looks at one thing, which must be there.
func (f *found) named(src *source, name string, isObject bool) error {
	if isObject {
		o, err := ctl.ShowObject(src.dir, name)
		f.objects = append(f.objects, o)
		return err
	}
	q, err := src.monitor.Show(name)
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, shm.ErrName) {
		f.queues = append(f.queues, q)
	}
	return err
}

// matching looks at what a pattern matches, and counts it, also what was seen before.
func (f *found) matching(src *source, pattern string, queues, objects []string,
	seen map[string]bool) (n int) {
	matches := func(name string) bool {
		ok, _ := path.Match(pattern, name)
		if ok {
			n++
		}
		return ok && !seen[name]
	}
	for _, name := range queues {
		if !matches(name) {
			continue
		}
		if q, err := src.monitor.Show(name); !errors.Is(err, fs.ErrNotExist) {
			f.queues = append(f.queues, q)
			seen[name] = true
		}
	}
	objects = slices.DeleteFunc(objects, func(name string) bool { return !matches(name) })
	if len(objects) > 0 {
		shown, _ := ctl.Objects(src.dir, objects...)
		f.objects = append(f.objects, shown...)
	}
	for _, o := range f.objects {
		seen[o.Name] = true
	}
	return n
}

func (l *look) print(cmd *cobra.Command, all found) error {
	w := cmd.OutOrStdout()
	if l.json() {
		return printFound(w, all)
	}
	if all.empty() && terminalOf(cmd.ErrOrStderr()).on {
		fmt.Fprintln(cmd.ErrOrStderr(), "no queues in", printable(pathOf(l.dir))+othersHave(l.dir))
	}
	return printLines(w, l.render(all, &l.output, terminalOf(w).page()))
}

func printFound(w io.Writer, all found) error {
	if all.queues == nil {
		all.queues = []ctl.Queue{} // an empty list is known to be empty
	}
	if all.objects == nil {
		all.objects = []ctl.Object{}
	}
	return printJSON(w, "queues", all.queues, "objects", all.objects)
}

func printLines(w io.Writer, lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}

// watch looks until the user has seen enough: on a terminal in place, else block after block.
func (l *look) watch(ctx context.Context, w io.Writer, src *source, args []string) error {
	s := &screen{w: w}
	defer s.close()
	for first := true; ; first = false {
		all, failed, err := l.collect(src, args)
		if err != nil {
			return err
		}
		if first && all.empty() && len(failed) > 0 {
			return errors.Join(failed...)
		}
		if err := l.frame(w, s, all, failed, first); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(l.every):
		}
	}
}

func (l *look) frame(w io.Writer, s *screen, all found, failed []error, first bool) error {
	if l.json() {
		return printFound(w, all)
	}
	t := terminalOf(w)
	lines := l.render(all, &l.output, t.page())
	for _, err := range failed { // it was there before, or others are
		if e := asOpError(err, ""); e.problem.Code == ctl.CodeNotFound {
			lines = append(lines, printable(e.name)+": gone")
		}
	}
	if t.on {
		return s.draw(t, lines)
	}
	if !first {
		lines = append([]string{""}, lines...)
	}
	return printLines(w, lines)
}
