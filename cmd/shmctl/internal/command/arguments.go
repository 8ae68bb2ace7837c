package command

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
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

// joinInterval makes "-w 200ms" of one piece. The interval may be left out, so that the parser
// would take it for a name; what is a number or a time and follows -w is one.
func joinInterval(root *cobra.Command, args []string) []string {
	cmd, _, err := root.Find(args)
	if err != nil || cmd.Flags().Lookup("watch") == nil {
		return args
	}
	for i := 0; i+1 < len(args) && args[i] != "--"; i++ {
		if wantsInterval(args[i]) && isInterval(args[i+1]) {
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

// meant adds to an error of the parser what was perhaps meant, as its second line.
func meant(cmd *cobra.Command, err error) error {
	for _, h := range habits {
		if verbPath(cmd) == h.verb &&
			strings.Contains(err.Error(), "unknown shorthand flag: '"+h.letter+"'") {
			return fmt.Errorf("%w\n%s;", err, h.meant)
		}
	}
	return err
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
