package stage

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Tool is a kind of supervisor, with what its processes do.
type Tool struct {
	Name string
	// Play is the process, in whatever role. What it returns is its exit code: 1 after an error,
	// which it has told in its own way.
	Play func(*Child) error
}

// verb is the hidden first argument of the processes of a tool.
func verb(tool string) string { return "__" + tool }

// Enter plays what args, without the program's name, ask for, if they are those of a process of one
// of the tools. A program calls it before anything else, and exits with the code if it was handled.
func Enter(args []string, tools ...Tool) (handled bool, code int) {
	for _, t := range tools {
		if len(args) != 3 || args[0] != verb(t.Name) {
			continue
		}
		// When to end is for the supervisor to decide. A SIGQUIT has it say what its goroutines do.
		signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
		c := &Child{Role: args[1], script: []byte(args[2]), out: json.NewEncoder(os.Stdout)}
		if t.Play(c) != nil {
			return true, 1
		}
		return true, 0
	}
	return false, 0
}

// ErrGone is why a child's context ends.
var ErrGone = errors.New("supervisor ended the run")

// Child is this process, which was started in a role. All methods may be called concurrently.
type Child struct {
	Role   string
	script []byte
	mu     sync.Mutex
	out    *json.Encoder
}

// Script decodes what the process was told when it was started.
func (c *Child) Script(into any) error { return json.Unmarshal(c.script, into) }

// Send says a line to the supervisor. One that is gone is noticed on the other pipe.
func (c *Child) Send(v any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.out.Encode(v)
}

// Listen takes what the supervisor tells, a line at a time, and ends the context when there is
// nothing more to come, as when the supervisor is gone. Lines that nobody takes keep it from
// hearing that; a process that is told none has a nil channel. It is called once.
func (c *Child) Listen(orders chan<- string) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		hear(os.Stdin, func(line []byte) {
			if orders != nil {
				orders <- string(line)
			}
		})
		cancel(ErrGone)
	}()
	return ctx
}

// hear calls f, which may be nil, with each line until there is no more. What comes after a line
// that is too long is read and not heard, so that nobody is kept from writing it.
func hear(r io.Reader, f func(line []byte)) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if f != nil {
			f(lines.Bytes())
		}
	}
	_, _ = io.Copy(io.Discard, r)
}
