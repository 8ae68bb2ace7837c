package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// ChildCommand is the hidden first argument that turns the program into one of its children.
const ChildCommand = "__demo"

// Child runs a child process if args, without the program's name, ask for one. It returns the exit
// code.
func Child(args []string) (handled bool, code int) {
	if len(args) != 3 || args[0] != ChildCommand {
		return false, 0
	}
	// What a terminal sends goes to the whole process group; the supervisor decides, and its end is
	// the order to clean up.
	signal.Ignore(os.Interrupt, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	l := newLine(context.Background(), os.Stdin, os.Stdout)
	var c config
	err := json.Unmarshal([]byte(args[2]), &c)
	if err == nil {
		run, ok := roles[args[1]]
		if !ok {
			err = fmt.Errorf("no role %q", args[1])
		} else {
			err = run(l, c)
		}
	}
	if err != nil {
		l.send(event{Is: "error", Error: err.Error()})
		return true, 1
	}
	return true, 0
}

var roles = map[string]func(*line, config) error{
	"application": runApplication,
	"device":      runDevice,
	"producer":    runProducer,
	"peer":        runPeer,
}
