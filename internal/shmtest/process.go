package shmtest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Proc is a child that runs, and talks with its test in lines.
type Proc struct {
	*exec.Cmd
	In  io.WriteCloser // what the child reads; its end tells it to go
	Out *bufio.Reader  // what the child says
}

// Start starts a child, which ends with the test. A system that forbids it lacks the feature
// "children".
func Start(t testing.TB, cmd *exec.Cmd) *Proc {
	t.Helper()
	return StartWith(t, cmd, "children")
}

// StartWith starts a child that the system forbids where it lacks a feature.
func StartWith(t testing.TB, cmd *exec.Cmd, feature string) *Proc {
	t.Helper()
	in, err := cmd.StdinPipe()
	Must(t, err)
	out, err := cmd.StdoutPipe()
	Must(t, err)
	if err = cmd.Start(); errors.Is(err, fs.ErrPermission) {
		_, _ = in.Close(), out.Close()
		Require(t, feature, err)
	}
	Must(t, err)
	p := &Proc{Cmd: cmd, In: in, Out: bufio.NewReader(out)}
	t.Cleanup(p.Kill)
	return p
}

// Line returns the next line that the child says.
func (p *Proc) Line(t testing.TB) string {
	t.Helper()
	s, err := p.Out.ReadString('\n')
	if err != nil {
		t.Fatalf("child says nothing: %v", err)
	}
	return strings.TrimSpace(s)
}

// Says waits for a line.
func (p *Proc) Says(t testing.TB, want string) {
	t.Helper()
	if s, err := p.Out.ReadString('\n'); strings.TrimSpace(s) != want {
		t.Fatalf("child says %q, want %q: %v", s, want, err)
	}
}

// Rest returns what the child says until it ends.
func (p *Proc) Rest(t testing.TB) string {
	t.Helper()
	text, err := io.ReadAll(p.Out)
	Must(t, err)
	return strings.TrimSpace(string(text))
}

// Stop asks the child to end and returns what it says then.
func (p *Proc) Stop(t testing.TB) string {
	t.Helper()
	_ = p.In.Close()
	text := p.Rest(t)
	if err := p.Wait(); err != nil {
		t.Errorf("child: %v", err)
	}
	return text
}

// Kill ends the child with SIGKILL and waits; it may be called again.
func (p *Proc) Kill() {
	_, _ = p.Process.Kill(), p.Wait()
	_ = p.In.Close()
}

// Say says a line to the test that started this process.
func Say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// Need ends a child that cannot go on.
func Need(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(3)
	}
}

// Needs is Need of a call that returns something.
func Needs[T any](v T, err error) T {
	Need(err)
	return v
}

// UntilTold waits until the test tells this process to go, or is gone.
func UntilTold() { _, _ = io.Copy(io.Discard, os.Stdin) }
