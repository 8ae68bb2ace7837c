package shm

import (
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

func TestMain(m *testing.M) {
	shmtest.Main(m, moreRoles, map[string]func(){
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

// moreRoles are of children whose tests are in other files, which add them.
var moreRoles = map[string]func(){}

// envObject tells a child which object it works on.
const envObject = "SHMRING_TEST_OBJECT"

// say tells the parent something on a line of its own.
var say = shmtest.Say

// need ends a child that cannot go on, and must a test.
var need, must = shmtest.Need, shmtest.Must

// childSleep ends when its parent closes the pipe, or dies.
func childSleep() {
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func childDir() *Dir {
	d := shmtest.Needs(OpenDir(""))
	return d
}

// childOwner makes an object and keeps it.
func childOwner() {
	o := shmtest.Needs(childDir().Create(os.Getenv(envObject), specFor(""), nil))
	say("ready %d", o.Owner().PID)
	childSleep()
}

// childLoser makes an object, and loses its lock as a stray close in its process would do.
func childLoser() {
	o := shmtest.Needs(childDir().Create(os.Getenv(envObject), specFor(""), nil))
	need(syscall.Close(o.lockFD))
	say("ready")
	childSleep()
}

// childClaimer claims when told to, and says how that went.
func childClaimer() {
	o := shmtest.Needs(childDir().Open(os.Getenv(envObject), ReadWrite))
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
	o := shmtest.Needs(childDir().Create(os.Getenv(envObject), specFor(""), nil))
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "SHMRING_TEST_ROLE=sleeper")
	cmd.Stdin = os.Stdin
	need(cmd.Start())
	say("ready %d", o.Owner().PID)
	childSleep()
}

func startChild(t *testing.T, role string, env ...string) *shmtest.Proc {
	t.Helper()
	return shmtest.Start(t, shmtest.Child(t, role, env...))
}

var eventually = shmtest.Eventually
