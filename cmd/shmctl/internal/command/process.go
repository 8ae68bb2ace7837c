package command

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/shmring/shmring/cmd/shmctl/internal/bench"
	"github.com/shmring/shmring/cmd/shmctl/internal/demo"
	"github.com/shmring/shmring/cmd/shmctl/internal/hostile"
	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
)

// children are asked, before anything else, whether the program was started as one of theirs.
var children = []func(args []string) (handled bool, code int){bench.Child, demo.Child,
	hostile.Child, torture.Child, userChild}

// Process runs the command line of this process and returns what to exit with.
func Process() int {
	for _, child := range children {
		if handled, code := child(os.Args[1:]); handled {
			return code
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// With a receiver, a closed pipe is an error to handle and not the end of the process.
	// Ignoring the signal would do that to the programs that we start, too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}
