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
	"github.com/shmring/shmring/internal/stage"
)

// enter plays what this process was started as by another one of the program, if it was.
func enter() (handled bool, code int) {
	if handled, code = userChild(os.Args[1:]); handled {
		return handled, code
	}
	return stage.Enter(os.Args[1:], bench.Tool, demo.Tool, hostile.Tool, torture.Tool)
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
