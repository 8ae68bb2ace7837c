// Package command is the command line of shmctl, one file a verb.
package command

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

const rootLong = `shmctl looks at completion queues in shared memory while they are in use, without
changing a byte of them: ls, show and tail. post and signal act on one, as any process of its user
can. check verifies that objects are whole, gc removes what dead processes left.

Of network devices probe says what they can do, serve owns one for programs without privilege, xdp
lists what sends and receives on them, and capture copies the packets into a file.

Queues live in a directory of files: --dir, or else $` + shm.EnvDir + `, or else
/dev/shm/shmring-UID. --all-users does what a verb does in the directories of all users, as a
process of each of them. Results go to standard output, everything else to standard error.

Queues without a name (Unnamed) cannot be listed, shown or signaled. Of wait sets and
channels only the bell of their process can be seen: which queues have a bit in it, and whether a
channel is armed.

A letter means the same in each verb that has it: -o output, -j json, -n numbers in full, -H no
heading, -c count, -w watch, -f follow, -r remove, -a all.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not found, 4 no permission, 5 a check found
something, 6 other version.`

// Main runs one command line, without the program's name, and returns the exit code.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(append([]string{}, joinInterval(root, args)...)) // nil: those of the process
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	// Until a verb runs, whatever goes wrong is wrong usage.
	running := false
	root.PersistentPreRun = func(*cobra.Command, []string) { running = true }
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !running {
		err = &usageError{meant(cmd, err)}
	}
	return finish(verbPath(cmd), err, stderr, wantsJSON(args))
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:               "shmctl",
		Short:             "Look at and measure completion queues, and serve network devices by them",
		Long:              rootLong,
		Version:           versionText(readVersion()),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
	}
	root.DisableSuggestions = true // they come with the hint, see meant
	root.SetVersionTemplate("{{.Version}}")
	root.AddCommand(forAllUsers(newList()), forAllUsers(newShow()), forAllUsers(newTail()), newPost(),
		newSignal(), forAllUsers(byDevice(newXDP())), byDevice(newProbe()), byDevice(newCapture()),
		forAllUsers(newGC()), forAllUsers(newCheck()), newVersion())
	root.AddCommand(linuxVerbs()...)
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = func(_ *cobra.Command, args []string) error {
			_, _, err := root.Find(args)
			return err
		}
	}
	return root
}

// verbPath is the verb as errors name it: without the program.
func verbPath(cmd *cobra.Command) string {
	if cmd == nil || !cmd.HasParent() {
		return ""
	}
	path := cmd.Name()
	for p := cmd.Parent(); p != nil && p.HasParent(); p = p.Parent() {
		path = p.Name() + " " + path
	}
	return path
}

// enter plays what this process was started as by another one of the program, if it was.
func enter() (handled bool, code int) {
	if handled, code = userChild(os.Args[1:]); handled {
		return handled, code
	}
	return stage.Enter(os.Args[1:], tools...)
}

// Process runs the command line of this process and returns what to exit with.
func Process() int {
	if handled, code := enter(); handled { // before anything else
		return code
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// With a receiver, a closed pipe is an error to handle and not the end of the process.
	// Ignoring the signal would do that to the programs that we start, too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}
