package command

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shmring/shmring/cmd/shmctl/internal/hostile"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
)

func TestHostile(t *testing.T) {
	for _, args := range [][]string{{"--mutations", "0"}, {"now"}, {"--surfaces", "sea"}} {
		if r := run(t, append([]string{"torture", "hostile"}, args...)...); r.code != ctl.CodeUsage {
			t.Errorf("torture hostile %v: exit %d, %s", args, r.code, r.stderr)
		}
	}
	if os.Geteuid() != 0 {
		shmtest.Require(t, "root", errors.New("only root starts processes of other users"))
	}
	newDir(t)
	text := ok(t, "torture", "hostile", "--mutations", "1000", "--seed", "3", "--surfaces",
		"event-lane", "-o", "json")
	valid(t, text)
	var v struct{ Hostile hostile.Report }
	must(t, json.Unmarshal([]byte(text), &v))
	if r := v.Hostile; r.Seed != 3 || r.Mutations < 1000 || len(r.Surfaces) != 1 || !r.Good() {
		t.Errorf("%s", text)
	}
	file := filepath.Join(t.TempDir(), "hostile.json")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	text = ok(t, "torture", "report", file)
	for _, want := range []string{"\n| attacks that provoked nothing | 0 |\n",
		"\n| event-lane | users |"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	text = ok(t, "torture", "hostile", "--mutations", "1000", "--surfaces", "event-lane")
	if !says(text, "processes ended by a peer", "0") {
		t.Errorf("%s", text)
	}
}
