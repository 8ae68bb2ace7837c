package command

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/hostile"
	"github.com/shmring/shmring/cmd/shmctl/internal/soak"
	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/internal/shmtest"
)

func TestTorture(t *testing.T) {
	shmtest.Long(t)
	newDir(t)
	const usual = "reader,writer,churner,event-writer,counter" // all at once are for longer runs
	text := ok(t, "torture", "--kills", "20", "--seed", "3", "--roles", usual, "-o", "json")
	r := parsed[torture.Report](t, "torture", text)
	if r.Seed != 3 || r.Kills < 20 || r.Read == 0 || !r.Good() {
		t.Errorf("%s", text)
	}
	text = ok(t, "torture", "--duration", "300ms", "--roles", usual)
	if !says(text, "lost", "0") {
		t.Errorf("%s", text)
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

func TestHostile(t *testing.T) {
	if os.Geteuid() != 0 {
		shmtest.Require(t, "root", errors.New("only root starts processes of other users"))
	}
	newDir(t)
	text := ok(t, "torture", "hostile", "--mutations", "1000", "--seed", "3", "--surfaces",
		"event-lane", "-o", "json")
	r := parsed[hostile.Report](t, "hostile", text)
	if r.Seed != 3 || r.Mutations < 1000 || len(r.Surfaces) != 1 || !r.Good() {
		t.Errorf("%s", text)
	}
	file := filepath.Join(t.TempDir(), "hostile.json")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	text = ok(t, "torture", "report", file)
	has(t, text, "\n| attacks that provoked nothing | 0 |\n",
		"\n| event-lane | users |")
	text = ok(t, "torture", "hostile", "--mutations", "1000", "--surfaces", "event-lane")
	if !says(text, "processes ended by a peer", "0") {
		t.Errorf("%s", text)
	}
}

func TestSoak(t *testing.T) {
	shmtest.Long(t)
	newDir(t)
	var text string
	var r soak.Report
	// The first round has the roles that begin slowest, and nobody dies before it has begun: on a
	// machine that is short of time that is more than a round.
	for d := 4 * time.Second; ; d *= 2 {
		text = ok(t, "torture", "soak", "--duration", d.String(), "--round", "3s", "--seed", "3",
			"-o", "json")
		r = parsed[soak.Report](t, "soak", text)
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
	var b strings.Builder
	r.Print(&b)
	if !says(b.String(), "lost", "0") {
		t.Error(b.String())
	}
	file := filepath.Join(t.TempDir(), "soak.json")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	has(t, ok(t, "torture", "report", file), "\n| lost | 0 |\n")
	for _, text := range r.Skipped { // a soak without its device half is half of one
		if strings.HasPrefix(text, "torture: ") && strings.Contains(text, "device") {
			shmtest.Require(t, "xdp", errors.New(text))
		}
	}
}
