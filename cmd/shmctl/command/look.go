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
	render func(q []ctl.Queue, o *output, p page) []string
}

func (l *look) flags(cmd *cobra.Command) {
	l.tableFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&l.dir, "dir", "", "`directory` of the queues")
	f.DurationVarP(&l.every, "watch", "w", 0, "look again every `interval`, 1s if none is given")
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
	queues, failed, err := l.collect(src, args)
	if err != nil {
		return err
	}
	if len(queues) > 0 || len(failed) == 0 {
		if err := l.print(cmd, queues); err != nil {
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

// collect looks at the queues that args name. What was named itself and cannot be looked at is a
// failure; what only matches a pattern, or is just there, shows its error in its place.
func (l *look) collect(src *source, args []string) (q []ctl.Queue, failed []error, err error) {
	if err := src.refresh(); err != nil {
		// Before the first queue was made there is no directory: that is an empty list.
		if errors.Is(err, fs.ErrNotExist) && l.dir == "" && onlyPatterns(args) {
			return nil, nil, nil
		}
		return nil, nil, opFailed(l.op, strings.Join(args, " "), err)
	}
	m := src.monitor
	if len(args) == 0 {
		q, err = m.List()
		if err != nil {
			err = opFailed(l.op, "", err)
		}
		return q, nil, err
	}
	seen := map[string]bool{}
	for _, arg := range args {
		if !isPattern(arg) {
			if one, err := m.Show(arg); err != nil {
				failed = append(failed, l.failed(src.dir, arg, err))
				if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, shm.ErrName) && !seen[arg] {
					q = append(q, one)
				}
			} else if !seen[arg] {
				q = append(q, one)
			}
			seen[arg] = true
			continue
		}
		names, err := m.Names()
		if err != nil {
			return nil, nil, opFailed(l.op, arg, err)
		}
		for _, name := range names {
			if ok, _ := path.Match(arg, name); !ok || seen[name] {
				continue
			}
			if one, err := m.Show(name); !errors.Is(err, fs.ErrNotExist) {
				q = append(q, one)
				seen[name] = true
			}
		}
	}
	return q, failed, nil
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

func (l *look) print(cmd *cobra.Command, queues []ctl.Queue) error {
	w := cmd.OutOrStdout()
	if l.json() {
		return printQueues(w, queues)
	}
	if len(queues) == 0 && terminalOf(cmd.ErrOrStderr()).on {
		where := l.dir
		if where == "" {
			where = shm.DefaultPath()
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "no queues in", printable(where))
	}
	return printLines(w, l.render(queues, &l.output, terminalOf(w).page()))
}

func printQueues(w io.Writer, queues []ctl.Queue) error {
	if queues == nil {
		queues = []ctl.Queue{} // an empty list is known to be empty
	}
	return printJSON(w, struct {
		Schema string      `json:"schema"`
		Queues []ctl.Queue `json:"queues"`
	}{schemaName, queues})
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
		queues, failed, err := l.collect(src, args)
		if err != nil {
			return err
		}
		if first && len(queues) == 0 && len(failed) > 0 {
			return errors.Join(failed...)
		}
		if err := l.frame(w, s, queues, failed, first); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(l.every):
		}
	}
}

func (l *look) frame(w io.Writer, s *screen, queues []ctl.Queue, failed []error, first bool) error {
	if l.json() {
		return printQueues(w, queues)
	}
	t := terminalOf(w)
	lines := l.render(queues, &l.output, t.page())
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
	return queueNames(l.dir), cobra.ShellCompDirectiveNoFileComp
}
