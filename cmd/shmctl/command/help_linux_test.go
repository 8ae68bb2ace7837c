package command

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestHelpTexts: what is written for each verb is no wider than a line of the source and ends where
// its words end.
func TestHelpTexts(t *testing.T) {
	verbs := 0
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		verbs++
		for _, text := range []string{cmd.Short, cmd.Long, cmd.Example} {
			for line := range strings.SplitSeq(text, "\n") {
				if strings.TrimRight(line, " \t\r") != line {
					t.Errorf("%s: a blank at the end: %q", cmd.CommandPath(), line)
				}
				if n := len([]rune(line)); n > 100 {
					t.Errorf("%s: %d columns: %q", cmd.CommandPath(), n, line)
				}
			}
		}
		for _, sub := range cmd.Commands() {
			look(sub)
		}
	}
	look(newRoot())
	if verbs < 15 {
		t.Errorf("%d verbs", verbs)
	}
}
