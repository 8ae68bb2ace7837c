package command

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/shm"
)

// target is what the verbs for one queue have in common: where it is, its name, and what to say if
// it is not there.
type target struct{ dir string }

func (o *target) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.dir, "dir", "", "`directory` of the queues")
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string,
		cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return queueNames(o.dir), cobra.ShellCompDirectiveNoFileComp
	}
}

// queueNames are what a shell can complete a name to.
func queueNames(dir string) []string {
	src := &source{path: dir}
	defer src.close()
	if src.refresh() != nil {
		return nil
	}
	names, _, _ := ctl.Names(src.dir)
	return names
}

// open opens the directory of the queue, and makes none.
func (o *target) open(name string) (*shm.Dir, error) {
	d, err := shm.FindDir(o.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, o.failed(name, err)
	}
	if err != nil {
		return nil, opFailed(name, err)
	}
	return d, nil
}

// make is open for a queue that is waited for, whose directory may not be there yet either.
func (o *target) make(name string) (*shm.Dir, error) {
	d, err := shm.OpenDir(o.dir)
	if err != nil {
		return nil, opFailed(name, err)
	}
	return d, nil
}

func (o *target) failed(name string, err error) error {
	p := ctl.NewProblem(err)
	kind := o.kindBeside(name, err)
	switch {
	case kind != "":
		p.Code, p.Message = ctl.CodeFailure, "it is of kind "+kind+", not a queue"
		p.Hint = new("shmctl show " + printable(name))
	case errors.Is(err, syscall.ENOENT) || errors.Is(err, fs.ErrNotExist) && p.Hint == nil:
		p.Hint = new(listHint(o.dir))
		if errors.Is(err, syscall.ENOENT) {
			p.Message = "no queue of that name in " + pathOf(o.dir)
		}
	case p.Hint == nil:
		p.Hint = remedy(err, name)
	}
	return &opError{name, p}
}

// kindBeside is the kind of an object that stands where a queue was meant.
func (o *target) kindBeside(name string, err error) string {
	if !errors.Is(err, shm.ErrKind) && !errors.Is(err, shm.ErrName) {
		return ""
	}
	d, err := shm.FindDir(o.dir)
	if err != nil {
		return ""
	}
	defer d.Close()
	b, err := ctl.ShowObject(d, name)
	if err != nil || b.Kind == nil {
		return ""
	}
	return printable(*b.Kind)
}

func listHint(dir string) string {
	hint := "shmctl ls"
	if dir != "" {
		hint += " --dir " + dir
	}
	return hint + " lists the queues that there are" + othersHave(dir)
}

// remedies for what the library says without one: it does not know that a tool asked.
var remedies = []struct {
	err  error
	text string // NAME is the queue's
}{
	{cq.ErrFull, "its reader is behind: shmctl show NAME tells who it is and whether it lives"},
	{cq.ErrOverrun, "entries were lost; its reader has to close it and open a larger one"},
	{cq.ErrClosed, "its reader destroyed it; it is gone when its writers have closed too"},
	{cq.ErrLanes, "close a writer, or create the queue with a larger MaxLanes: shmctl show NAME"},
	{shm.ErrKind, "completion queues take completions, and event queues what is posted with --event"},
	{cq.ErrNoWait, "its reader never blocks, so there is nothing to end"},
}

func remedy(err error, name string) *string {
	for _, r := range remedies {
		if errors.Is(err, r.err) {
			return new(strings.ReplaceAll(r.text, "NAME", printable(name)))
		}
	}
	return nil
}

// pathOf is the directory that --dir means.
func pathOf(dir string) string { return cmp.Or(dir, shm.DefaultPath()) }

// source is the directory that is looked at. While somebody watches it can go and come back.
type source struct {
	path    string // as the user gave it; empty is the default
	dir     *shm.Dir
	monitor *ctl.Monitor
	opened  os.FileInfo
}

// refresh opens what stands at the path now, unless that is open already.
func (s *source) refresh() error {
	path := pathOf(s.path)
	info, err := os.Lstat(path)
	if s.monitor != nil && err == nil && os.SameFile(info, s.opened) {
		return nil
	}
	s.close()
	d, err := shm.FindDir(path)
	if err != nil {
		return err
	}
	// info may be of what was there a moment before: then the next refresh opens again.
	s.dir, s.monitor, s.opened = d, ctl.NewMonitor(d), info
	return nil
}

func (s *source) close() {
	if s.monitor != nil {
		_ = s.monitor.Close()
		_ = s.dir.Close()
	}
	s.dir, s.monitor = nil, nil
}
