package ctl_test

import (
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

func startChild(t testing.TB, d *shm.Dir, role string, env ...string) *shmtest.Proc {
	t.Helper()
	return shmtest.Start(t, childOf(t, d, role, env...))
}

func childOf(t testing.TB, d *shm.Dir, role string, env ...string) *exec.Cmd {
	t.Helper()
	return shmtest.Child(t, role, append(env, shm.EnvDir+"="+d.Path())...)
}

// What a child does.
var say, need, untilTold = shmtest.Say, shmtest.Need, shmtest.UntilTold

// ownDir is a directory of one test, which goes with it whatever is in it.
func ownDir(t testing.TB) *shm.Dir {
	t.Helper()
	path := filepath.Join(os.Getenv(shm.EnvDir), strings.ReplaceAll(t.Name(), "/", "-"))
	d := shmtest.Got(shm.OpenDir(path)).Or(t)
	t.Cleanup(func() {
		must(t, d.Close())
		must(t, os.RemoveAll(path))
	})
	return d
}
