package command

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
)

func TestTorture(t *testing.T) {
	shmtest.Long(t)
	newDir(t)
	const usual = "reader,writer,churner,event-writer,counter" // all at once are for longer runs
	text := ok(t, "torture", "--kills", "20", "--seed", "3", "--roles", usual, "-o", "json")
	valid(t, text)
	var v struct{ Torture torture.Report }
	must(t, json.Unmarshal([]byte(text), &v))
	if r := v.Torture; r.Seed != 3 || r.Kills < 20 || r.Read == 0 || !r.Good() {
		t.Errorf("%s", text)
	}
	text = ok(t, "torture", "--duration", "300ms", "--roles", usual)
	if !says(text, "lost", "0") {
		t.Errorf("%s", text)
	}
	for _, args := range [][]string{{"--duration", "0s"}, {"--duration", "-1s"}, {"now"},
		{"--trust", "nobody"}} {
		if r := run(t, append([]string{"torture"}, args...)...); r.code != ctl.CodeUsage {
			t.Errorf("torture %v: exit %d, %s", args, r.code, r.stderr)
		}
	}
}

// TestTortureRoles: without a choice everybody takes part who can, and it is said who cannot.
func TestTortureRoles(t *testing.T) {
	var said strings.Builder
	all := rolesHere(&said, func(name string) error {
		if name == "device" {
			return errors.New("no interface")
		}
		return nil
	})
	if len(all) != len(torture.Roles())-1 || slices.Contains(all, "device") ||
		!slices.Contains(all, "others-writer") ||
		said.String() != "shmctl: torture without device: no interface\n" {
		t.Errorf("%v, %q", all, said.String())
	}
}
