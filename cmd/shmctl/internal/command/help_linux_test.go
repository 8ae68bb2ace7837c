package command

import (
	"strings"
	"testing"

	"github.com/shmring/shmring/ctl"
)

// TestDevMeansOneThing: every verb of devices takes the interface as an argument or by --dev.
func TestDevMeansOneThing(t *testing.T) {
	newDir(t)
	for verb, more := range map[string]string{"serve": "", "probe": "", "xdp": "",
		"capture": "--write -"} {
		named := run(t, strings.Fields(verb+" nosuch0 "+more)...)
		byFlag := run(t, strings.Fields(verb+" --dev nosuch0 "+more)...)
		if named != byFlag || named.code == 0 || named.code == ctl.CodeUsage {
			t.Errorf("%s: %+v and %+v", verb, named, byFlag)
		}
		twice := run(t, strings.Fields(verb+" nosuch1 --dev nosuch0 "+more)...)
		if verb != "xdp" && (twice.code != ctl.CodeUsage || !strings.Contains(twice.stderr, "stray")) {
			t.Errorf("%s: %+v", verb, twice)
		}
	}
}

// TestFailuresHaveRemedies: whatever fails says what to do about it.
func TestFailuresHaveRemedies(t *testing.T) {
	newDir(t)
	for _, line := range []string{"show nope", "tail nope", "signal nope", "post nope", "check nope",
		"xdp nope", "capture nope --write -", "probe nosuch0", "serve nosuch0", "ls --dir /proc",
		"gc --persistent-too nope", "ls --dir /nonexistent", "check --pid 4194304",
		"torture report /nonexistent", "show a/b"} {
		r := run(t, strings.Fields(line)...)
		if r.code == 0 || strings.Count(r.stderr, "\n  ") != 1 {
			t.Errorf("%s: exit %d, %s", line, r.code, r.stderr)
		}
	}
}
