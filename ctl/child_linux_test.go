package ctl_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// roles are what the test binary does when it is started as a child. Files that are for some
// systems only add theirs.
var roles = map[string]func(){}

func TestMain(m *testing.M) { shmtest.Main(m, roles) }

// child is a running process in a role.
type child struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(t testing.TB, d *shm.Dir, role string, env ...string) *child {
	t.Helper()
	return start(t, childOf(t, d, role, env...))
}

func childOf(t testing.TB, d *shm.Dir, role string, env ...string) *exec.Cmd {
	t.Helper()
	// A child that looks for races would take a second to exit.
	env = append(env, "GORACE=atexit_sleep_ms=0", shm.EnvDir+"="+d.Path())
	return shmtest.Child(t, role, env...)
}

func start(t testing.TB, cmd *exec.Cmd) *child {
	t.Helper()
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	c := &child{Cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(c.kill)
	return c
}

// kill ends the child with SIGKILL and waits; it may be called again.
func (c *child) kill() {
	_ = c.Process.Kill()
	_ = c.Wait()
	c.in.Close()
}

// line returns the next line that the child says.
func (c *child) line(t testing.TB) string {
	t.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("child says nothing: %v", err)
	}
	return strings.TrimSpace(s)
}

// rest returns what the child says until it ends.
func (c *child) rest(t testing.TB) string {
	t.Helper()
	text, err := io.ReadAll(c.out)
	must(t, err)
	return strings.TrimSpace(string(text))
}

// stop asks the child to end and returns what it says then.
func (c *child) stop(t testing.TB) string {
	t.Helper()
	c.in.Close()
	text := c.rest(t)
	if err := c.Wait(); err != nil {
		t.Errorf("child: %v", err)
	}
	return text
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// need ends a child that cannot go on.
func need(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(3)
	}
}

// untilTold waits for the parent to close the pipe, or to kill us.
func untilTold() { _, _ = io.Copy(io.Discard, os.Stdin) }

// ownDir is a directory of one test, which goes with it whatever is in it.
func ownDir(t testing.TB) *shm.Dir {
	t.Helper()
	path := filepath.Join(os.Getenv(shm.EnvDir), strings.ReplaceAll(t.Name(), "/", "-"))
	d, err := shm.OpenDir(path)
	must(t, err)
	t.Cleanup(func() {
		must(t, d.Close())
		must(t, os.RemoveAll(path))
	})
	return d
}
