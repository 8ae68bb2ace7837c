package command

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

const envArgs = "SHMCTL_TEST_ARGS"

func init() {
	roles["shmctl"] = func() {
		os.Args = append([]string{"shmctl"}, strings.Fields(os.Getenv(envArgs))...)
		os.Exit(Process())
	}
}

// TestWatchEnds ends a watching process as users do: with an interrupt, and by closing the pipe.
func TestWatchEnds(t *testing.T) {
	d := newDir(t)
	leave(t, d, "orders", 0)
	for name, end := range map[string]func(p *os.Process, out *os.File) error{
		"interrupt": func(p *os.Process, _ *os.File) error { return p.Signal(os.Interrupt) },
		"pipe":      func(_ *os.Process, out *os.File) error { return out.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c := shmtest.Child(t, "shmctl", envArgs+"=ls -w=1ms -H")
			r, w, err := os.Pipe()
			must(t, err)
			defer r.Close()
			c.Stdout = w
			must(t, c.Start())
			must(t, w.Close())
			line, err := bufio.NewReader(r).ReadString('\n')
			if err != nil || !strings.HasPrefix(line, "orders") {
				t.Errorf("%q, %v", line, err)
			}
			must(t, end(c.Process, r))
			if name == "interrupt" {
				go func() { _, _ = r.WriteTo(discard{}) }()
			}
			if err := c.Wait(); err != nil {
				t.Errorf("%v, want exit 0", err)
			}
		})
	}
}

// discard takes everything, so that a writer is not stopped by a full pipe.
type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }
