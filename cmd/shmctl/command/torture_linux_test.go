package command

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/shmring/shmring/cmd/shmctl/torture"
	"github.com/shmring/shmring/ctl"
)

func TestTorture(t *testing.T) {
	newDir(t)
	text := ok(t, "torture", "--kills", "20", "--seed", "3", "-o", "json")
	valid(t, text)
	var v struct{ Torture torture.Report }
	must(t, json.Unmarshal([]byte(text), &v))
	if r := v.Torture; r.Seed != 3 || r.Kills < 20 || r.Read == 0 || !r.Good() {
		t.Errorf("%s", text)
	}
	text = ok(t, "torture", "--duration", "300ms")
	if !strings.Contains(text, "\nlost         0\n") {
		t.Errorf("%s", text)
	}
	for _, args := range [][]string{{"--duration", "0s"}, {"--duration", "-1s"}, {"now"},
		{"--trust", "nobody"}} {
		if r := run(t, append([]string{"torture"}, args...)...); r.code != ctl.CodeUsage {
			t.Errorf("torture %v: exit %d, %s", args, r.code, r.stderr)
		}
	}
}
