package command

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shmring/shmring/cmd/shmctl/soak"
	"github.com/shmring/shmring/ctl"
)

func TestSoak(t *testing.T) {
	newDir(t)
	text := ok(t, "torture", "soak", "--duration", "4s", "--round", "3s", "--seed", "3", "-o", "json")
	valid(t, text)
	var v struct{ Soak soak.Report }
	must(t, json.Unmarshal([]byte(text), &v))
	if r := v.Soak; r.Seed != 3 || r.Rounds == 0 || r.Kills == 0 || r.Operations == 0 || !r.Good() {
		t.Errorf("%s", text)
	}
	for _, args := range [][]string{{"--duration", "0"}, {"--round", "-1s"}, {"now"}} {
		if r := run(t, append([]string{"torture", "soak"}, args...)...); r.code != ctl.CodeUsage {
			t.Errorf("torture soak %v: exit %d, %s", args, r.code, r.stderr)
		}
	}
	var b strings.Builder
	v.Soak.Print(&b)
	if !strings.Contains(b.String(), "\nlosses       0\n") {
		t.Error(b.String())
	}
	file := filepath.Join(t.TempDir(), "soak.json")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	if text := ok(t, "torture", "report", file); !strings.Contains(text, "\n| lost | 0 |\n") {
		t.Error(text)
	}
}
