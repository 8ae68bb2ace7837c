package shm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
)

func TestMain(m *testing.M) {
	shmtest.Main(m, forkRoles, map[string]func(){
		"owner":   childOwner,
		"loser":   childLoser,
		"claimer": childClaimer,
		"forker":  childForker,
		"sitter":  childSitter,
		"sleeper": childSleep,
		"tinyfs":  childTinyFS,
		"otherns": childOtherNS,
	})
}

// forkRoles are those of fork_linux_test.go.
var forkRoles = map[string]func(){}

// envObject tells a child which object it works on.
const envObject = "SHMRING_TEST_OBJECT"

// say tells the parent something on a line of its own.
func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// must ends a child that cannot go on.
func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(3)
	}
}

// childSleep ends when its parent closes the pipe, or dies.
func childSleep() {
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func childDir() *Dir {
	d, err := OpenDir("")
	must(err)
	return d
}

// childOwner makes an object and keeps it.
func childOwner() {
	o, err := childDir().Create(os.Getenv(envObject), specFor(""), nil)
	must(err)
	say("ready %d", o.Owner().PID)
	childSleep()
}

// childLoser makes an object, and loses its lock as a stray close in its process would do.
func childLoser() {
	o, err := childDir().Create(os.Getenv(envObject), specFor(""), nil)
	must(err)
	must(syscall.Close(o.lockFD))
	say("ready")
	childSleep()
}

// childClaimer claims when told to, and says how that went.
func childClaimer() {
	o, err := childDir().Open(os.Getenv(envObject), ReadWrite)
	must(err)
	say("ready")
	_, _ = os.Stdin.Read(make([]byte, 1))
	if err := o.Claim(nil); err != nil {
		say("no %v", err)
	} else {
		say("yes %d", o.Generation())
	}
	childSleep()
}

// childForker makes an object and starts a process that outlives it.
func childForker() {
	o, err := childDir().Create(os.Getenv(envObject), specFor(""), nil)
	must(err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "SHMRING_TEST_ROLE=sleeper")
	cmd.Stdin = os.Stdin
	must(cmd.Start())
	say("ready %d", o.Owner().PID)
	childSleep()
}

// child is a running process in a role.
type child struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(t *testing.T, role string, env ...string) *child {
	t.Helper()
	return start(t, shmtest.Child(t, role, env...), "children")
}

// start starts a child that needs this feature.
func start(t *testing.T, cmd *exec.Cmd, feature string) *child {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	err = cmd.Start()
	if errors.Is(err, fs.ErrPermission) {
		in.Close()
		out.Close()
		shmtest.Require(t, feature, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &child{Cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(c.kill)
	return c
}

// line returns the next line that the child says.
func (c *child) line(t *testing.T) string {
	t.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("child says nothing: %v", err)
	}
	return strings.TrimSpace(s)
}

// kill ends the child with SIGKILL and waits; it may be called again.
func (c *child) kill() {
	_ = c.Process.Kill()
	_ = c.Wait()
	c.in.Close()
}

// eventually waits until what the kernel does by itself has been done.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 12_000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("never: ", what)
}
