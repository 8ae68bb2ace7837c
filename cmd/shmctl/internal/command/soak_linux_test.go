package command

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/soak"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
)

func TestSoak(t *testing.T) {
	shmtest.Long(t)
	newDir(t)
	var text string
	var v struct{ Soak soak.Report }
	// The first round has the roles that begin slowest, and nobody dies before it has begun: on a
	// machine that is short of time that is more than a round.
	for d := 4 * time.Second; ; d *= 2 {
		v.Soak = soak.Report{}
		text = ok(t, "torture", "soak", "--duration", d.String(), "--round", "3s", "--seed", "3",
			"-o", "json")
		valid(t, text)
		must(t, json.Unmarshal([]byte(text), &v))
		r := v.Soak
		if r.Seed != 3 || r.Rounds == 0 || !r.Good() {
			t.Fatalf("%s", text)
		}
		if r.Kills > 0 && r.Operations > 0 {
			break
		}
		if d > 2*time.Minute {
			t.Fatalf("nobody died, or did anything: %s", text)
		}
	}
	for _, args := range [][]string{{"--duration", "0"}, {"--round", "-1s"}, {"now"}} {
		if r := run(t, append([]string{"torture", "soak"}, args...)...); r.code != ctl.CodeUsage {
			t.Errorf("torture soak %v: exit %d, %s", args, r.code, r.stderr)
		}
	}
	var b strings.Builder
	v.Soak.Print(&b)
	if !says(b.String(), "lost", "0") {
		t.Error(b.String())
	}
	file := filepath.Join(t.TempDir(), "soak.json")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	if text := ok(t, "torture", "report", file); !strings.Contains(text, "\n| lost | 0 |\n") {
		t.Error(text)
	}
	for _, text := range v.Soak.Skipped { // a soak without its device half is half of one
		if strings.HasPrefix(text, "torture: ") && strings.Contains(text, "device") {
			shmtest.Require(t, "xdp", errors.New(text))
		}
	}
}
