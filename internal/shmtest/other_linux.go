package shmtest

import (
	"os/exec"
	"syscall"
	"testing"
)

// Other is the user of processes of another user; their group is the same number.
const Other = 65534

// NeedOther says that a test starts processes of another user.
func NeedOther(t testing.TB) {
	t.Helper()
	RequireRoot(t, "root", "only root starts processes of other users")
}

// AsOther has a child run as another user, without any capability. Only root may.
func AsOther(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	NeedOther(t)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: Other, Gid: Other}}
	cmd.Path = "/proc/self/exe" // it lies in a directory that the other user may not enter
}
