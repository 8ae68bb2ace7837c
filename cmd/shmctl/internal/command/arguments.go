package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/shm"
)

// takesOne takes one argument, and names it when it is missing.
func takesOne(what string) cobra.PositionalArgs { return arguments(1, 1, what) }

// takesSome takes at least one.
func takesSome(what string) cobra.PositionalArgs { return arguments(1, -1, what) }

// takesNone takes no argument: what stands there is called stray, for it is no verb either.
func takesNone(cmd *cobra.Command, args []string) error { return arguments(0, 0, "")(cmd, args) }

func arguments(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("%s is missing", what)
		case most == 0 && len(args) > 0:
			return fmt.Errorf("stray argument %q: %s takes none", args[0], verbPath(cmd))
		case most > 0 && len(args) > most:
			return fmt.Errorf("stray argument %q: %s takes one %s", args[most], verbPath(cmd), what)
		}
		return nil
	}
}

// joinInterval makes "-w=200ms" of "-w 200ms" and of "-w200ms". The interval may be left out, so
// that the parser would take it for a name or for letters; what is a number or a time and follows
// -w is one.
func joinInterval(root *cobra.Command, args []string) []string {
	cmd, _, err := root.Find(args)
	if err != nil || cmd.Flags().Lookup("watch") == nil {
		return args
	}
	for i := 0; i < len(args) && args[i] != "--"; i++ {
		letters, interval, _ := strings.Cut(args[i], "w")
		switch {
		case wantsInterval(letters+"w") && isInterval(interval):
			joined := letters + "w=" + interval
			return slices.Concat(args[:i], []string{joined}, args[i+1:])
		case i+1 < len(args) && wantsInterval(args[i]) && isInterval(args[i+1]):
			joined := args[i] + "=" + args[i+1]
			return slices.Concat(args[:i], []string{joined}, args[i+2:])
		}
	}
	return args
}

// plainLetters are the letters of flags that need no value.
const plainLetters = "wHnjfra"

func wantsInterval(arg string) bool {
	if arg == "--watch" {
		return true
	}
	return len(arg) > 1 && arg[0] == '-' && strings.HasSuffix(arg, "w") &&
		strings.Trim(arg[1:], plainLetters) == ""
}

func isInterval(arg string) bool {
	_, err := time.ParseDuration(arg)
	if err != nil {
		_, err = strconv.ParseFloat(arg, 64) // without a unit, which is said when it is parsed
	}
	return err == nil
}

// habits are letters that mean something else in a program that people know.
var habits = []struct{ verb, letter, meant string }{
	{"capture", "w", "the file is named by --write; -w is --watch, in other verbs"},
	{"gc", "f", "-r, --remove removes; -f is --follow, in other verbs"},
	{"tail", "n", "-c, --count says how many; -n is --numeric, in other verbs"},
	{"post", "n", "-c, --count says how many; -n is --numeric, in other verbs"},
}

// meant says an error of the parser in our words, and adds what was perhaps meant as its second
// line.
func meant(cmd *cobra.Command, err error) error {
	var word string
	if n, _ := fmt.Sscanf(err.Error(), "unknown command %q", &word); n == 1 {
		root := cmd.Root()
		root.SuggestionsMinimumDistance = min(2, len(word)/2) // of three letters one may be wrong
		if near := root.SuggestionsFor(word); len(near) > 0 {
			return fmt.Errorf("%w\ndid you mean %s?", err, strings.Join(near, " or "))
		}
	}
	var value *pflag.InvalidValueError
	if errors.As(err, &value) {
		return badValue(value)
	}
	for _, h := range habits {
		if verbPath(cmd) == h.verb &&
			strings.Contains(err.Error(), "unknown shorthand flag: '"+h.letter+"'") {
			return fmt.Errorf("%w\n%s;", err, h.meant)
		}
	}
	return err
}

// badValue says what is wrong with a value of a flag, where the parser names a function of Go.
func badValue(e *pflag.InvalidValueError) error {
	cause, kind := errors.Unwrap(e), e.GetFlag().Value.Type()
	why := ""
	switch {
	case kind == "bool":
		why = "it is neither true nor false"
	case errors.Is(cause, strconv.ErrRange):
		why = "it is too large or too small"
	case errors.Is(cause, strconv.ErrSyntax):
		why = "it is no number"
	case kind == "duration" && isInterval(e.GetValue()):
		why = "it has no unit: say " + e.GetValue() + "s for seconds"
	case kind == "duration":
		why = "it is no time, as 5s or 200ms"
	default:
		return e
	}
	return errors.New(strings.TrimSuffix(e.Error(), cause.Error()) + why)
}

// byDevice lets a verb of network devices take the interface as its argument or by --dev, whichever
// comes to mind.
func byDevice(cmd *cobra.Command) *cobra.Command {
	run, check := cmd.RunE, cmd.Args
	if cmd.Flags().Lookup("dev") != nil {
		cmd.Args = arguments(0, 1, "INTERFACE")
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if cmd.Flags().Changed("dev") {
					return wrong("stray argument %q: --dev names the interface", name)
				}
				if err := cmd.Flags().Set("dev", name); err != nil {
					return err
				}
			}
			return run(cmd, nil)
		}
		return cmd
	}
	dev := cmd.Flags().String("dev", "", "network `interface`, in place of the argument")
	all := func(args []string) []string {
		if *dev != "" {
			return append([]string{*dev}, args...)
		}
		return args
	}
	if check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error { return check(cmd, all(args)) }
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return run(cmd, all(args)) }
	return cmd
}

// choice is a flag that has one of some values, which are known by what they print as.
type choice[T any] struct {
	to     *T
	values []T
}

func (c choice[T]) String() string {
	if c.to == nil { // of one that has no value, see flag.Value
		return ""
	}
	return fmt.Sprint(*c.to)
}

func (c choice[T]) Type() string { return "string" }

func (c choice[T]) Set(text string) error {
	for _, v := range c.values {
		if fmt.Sprint(v) == text {
			*c.to = v
			return nil
		}
	}
	return fmt.Errorf("it is none of %s", strings.Join(c.texts(), ", "))
}

func (c choice[T]) texts() (all []string) {
	for _, v := range c.values {
		all = append(all, fmt.Sprint(v))
	}
	return all
}

// oneOf adds such a flag, which has the first of the values unless it is given, and which a shell
// completes.
func oneOf[T any](cmd *cobra.Command, to *T, name, letter, usage string, values ...T) {
	c := choice[T]{to, values}
	*to = values[0]
	cmd.Flags().VarP(c, name, letter, usage)
	_ = cmd.RegisterFlagCompletionFunc(name,
		cobra.FixedCompletions(c.texts(), cobra.ShellCompDirectiveNoFileComp))
}

// target is what the verbs for one queue have in common: where it is, its name, and what to say if
// it is not there.
type target struct{ dir string }

func (o *target) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.dir, "dir", "", "`directory` of the queues")
	cmd.ValidArgsFunction = o.names(1, false, cobra.ShellCompDirectiveNoFileComp)
}

// names completes so many arguments, to queues or to objects beside them too.
func (o *target) names(most int, all bool, files cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, files
		}
		d, err := shm.FindDir(o.dir)
		if err != nil {
			return nil, files
		}
		defer d.Close()
		queues, objects, _ := ctl.Names(d)
		if all {
			queues = append(queues, objects...)
		}
		return queues, files
	}
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

// sayAbsent says that the directory which the environment names is not there. It may not be made
// yet, so that it is no failure, or be mistyped.
func (o *target) sayAbsent(stderr io.Writer) {
	path := os.Getenv(shm.EnvDir)
	if path == "" || o.dir != "" {
		return
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(stderr, "%s of %s does not exist: it is made with the first queue\n",
			printable(path), shm.EnvDir)
	}
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
	case errors.Is(err, syscall.ENOENT) && isPattern(name):
		p.Message = "it is taken as one name, not as a pattern, and no queue has it"
		p.Hint = new("shmctl ls " + strconv.Quote(name) + " lists what matches it")
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
	seen    map[string]bool // at the last look
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
