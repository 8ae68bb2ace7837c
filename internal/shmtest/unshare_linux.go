package shmtest

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"testing"
)

// Unshared has a command that was prepared run in namespaces of its own, as unshare(1) makes them
// from these options, and skips the test where this user may not make them.
func Unshared(t testing.TB, feature string, cmd *exec.Cmd, options ...string) {
	t.Helper()
	tool, err := exec.LookPath("unshare")
	if err == nil {
		var text []byte
		text, err = exec.CommandContext(t.Context(), tool, append(options, "true")...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(text))
		}
	}
	Require(t, feature, err)
	cmd.Args = slices.Concat([]string{tool}, options, []string{cmd.Path}, cmd.Args[1:])
	cmd.Path = tool
}
