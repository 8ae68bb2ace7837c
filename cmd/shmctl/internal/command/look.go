package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/shm"
)

// look is what ls and show have in common: which queues, how often, how printed.
type look struct {
	output
	op     string
	dir    string
	every  time.Duration
	render func(f found, o *output, p page) []string
}

// found is what there was to be seen.
type found struct {
	queues  []ctl.Queue
	objects []ctl.Object
}

func (f found) empty() bool { return len(f.queues) == 0 && len(f.objects) == 0 }

func (l *look) flags(cmd *cobra.Command) {
	l.tableFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&l.dir, "dir", "", "`directory` of the queues")
	f.DurationVarP(&l.every, "watch", "w", 0,
		"look again every `interval`, as 200ms; 1s if none is given")
	f.Lookup("watch").NoOptDefVal = "1s"
	cmd.ValidArgsFunction = l.complete
}

func (l *look) run(cmd *cobra.Command, args []string) error {
	if err := l.check(cmd); err != nil {
		return err
	}
	if l.every < 0 || cmd.Flags().Changed("watch") && l.every == 0 {
		return &usageError{verb: l.op, err: fmt.Errorf("interval %v is not above 0", l.every)}
	}
	for _, pattern := range args {
		if _, err := path.Match(pattern, ""); err != nil {
			return &usageError{verb: l.op, err: fmt.Errorf("pattern %q: %w", pattern, err)}
		}
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

// onlyPatterns reports whether nothing in args must exist.
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
		if errors.Is(err, fs.ErrNotExist) && l.dir == "" && onlyPatterns(args) {
			return all, nil, nil
		}
		return all, nil, opFailed(l.op, strings.Join(args, " "), err)
	}
	if len(args) == 0 {
		if all.queues, err = src.monitor.List(); err == nil {
			all.objects, err = ctl.Objects(src.dir)
		}
		if err != nil {
			err = opFailed(l.op, "", err)
		}
		return all, nil, err
	}
	seen := map[string]bool{}
	for _, arg := range args {
		queues, objects, err := ctl.Names(src.dir)
		if err != nil {
			return all, nil, opFailed(l.op, arg, err)
		}
		if isPattern(arg) {
			all.matching(src, arg, queues, objects, seen)
		} else if !seen[arg] {
			if err := all.named(src, arg, slices.Contains(objects, arg)); err != nil {
				failed = append(failed, l.failed(src.dir, arg, err))
			}
			seen[arg] = true
		}
	}
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

// matching looks at what a pattern matches.
func (f *found) matching(src *source, pattern string, queues, objects []string,
	seen map[string]bool) {
	matches := func(name string) bool {
		ok, _ := path.Match(pattern, name)
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
}

func (l *look) failed(d *shm.Dir, name string, err error) error {
	p := ctl.NewProblem(err)
	// What the system did not find is a name; a queue that is being destroyed says so itself.
	if errors.Is(err, syscall.ENOENT) {
		p.Hint = new(listHint(l.dir))
		p.Message = "no queue of that name in " + d.Path()
	}
	return &opError{op: l.op, name: name, problem: p}
}

func (l *look) print(cmd *cobra.Command, all found) error {
	w := cmd.OutOrStdout()
	if l.json() {
		return printFound(w, all)
	}
	if all.empty() && terminalOf(cmd.ErrOrStderr()).on {
		where := l.dir
		if where == "" {
			where = shm.DefaultPath()
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "no queues in", printable(where)+othersHave(l.dir))
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
	return printJSON(w, struct {
		Schema  string       `json:"schema"`
		Queues  []ctl.Queue  `json:"queues"`
		Objects []ctl.Object `json:"objects"`
	}{schemaName, all.queues, all.objects})
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
		if e := asOpError(err); e.problem.Code == ctl.CodeNotFound {
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

// complete offers the names of queues.
func (l *look) complete(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	src := &source{path: l.dir}
	defer src.close()
	if src.refresh() != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	queues, objects, _ := ctl.Names(src.dir)
	return append(queues, objects...), cobra.ShellCompDirectiveNoFileComp
}
