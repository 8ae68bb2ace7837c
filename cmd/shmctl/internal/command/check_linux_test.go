package command

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
)

func TestCheck(t *testing.T) {
	d := newDir(t)
	everything(t, d)
	must(t, os.WriteFile(filepath.Join(d.Path(), "notes"), []byte("no object"), 0o600))
	if text := ok(t, "check"); !strings.Contains(text, "5 objects checked, 0 findings") {
		t.Error(text)
	}
	if text := ok(t, "check", "orders", d.Path()+"/sent"); !strings.Contains(text, "2 objects") {
		t.Error(text)
	}
	if text := ok(t, "check", "--list"); !strings.Contains(text, "slot.sequence") ||
		!strings.Contains(text, "quiet") {
		t.Error(text)
	}
	// A copy, for the original is in use.
	kept := createQueue(t, d, "kept", cq.Options{Size: 8, Lifetime: cq.Persistent})
	must(t, kept.Detach())
	path := filepath.Join(d.Path(), "kept", "reader")
	image, err := os.ReadFile(path)
	must(t, err)
	image[0x1080] = 9 // the state
	must(t, os.WriteFile(path, image, 0o600))
	r := run(t, "check", "kept")
	if r.code != ctl.CodeCheck || !strings.Contains(r.stdout, "queue.state") ||
		!strings.Contains(r.stdout, "0x1080") || !strings.Contains(r.stdout, "9, want 1 to 4") ||
		!strings.Contains(r.stderr, "1 invariants do not hold") {
		t.Errorf("%+v", r)
	}
	r = run(t, "check", "-j")
	valid(t, r.stdout)
	var v struct{ Check ctl.CheckReport }
	must(t, json.Unmarshal([]byte(r.stdout), &v))
	if f := v.Check.Findings; r.code != ctl.CodeCheck || len(f) != 1 || f[0].Name != "kept" ||
		*f[0].Offset != 0x1080 || *f[0].SectionOffset != 128 || f[0].Section != "queue" {
		t.Errorf("%+v", r)
	}
	if p := failure(t, r.stderr); p.Code != ctl.CodeCheck {
		t.Errorf("%+v", p)
	}
	if r := run(t, "check", "nobody"); r.code != ctl.CodeNotFound {
		t.Errorf("%+v", r)
	}
	must(t, os.RemoveAll(filepath.Join(d.Path(), "kept")))
	must(t, os.Remove(filepath.Join(d.Path(), "notes")))
}

func TestCheckTables(t *testing.T) {
	r := ctl.CheckReport{Objects: 3, Undecided: []string{"/dev/shm/x/peers"}, Findings: []ctl.Finding{
		{Name: "orders", Path: "/dev/shm/x/orders/lane-0001", Invariant: "lane.tail", Section: "lane",
			Offset: new(uint64(4096)), SectionOffset: new(uint64(0)), Got: "99", Want: "0 to 8"},
		{Name: "orders", Path: "/dev/shm/x/orders/no\tes", Invariant: "queue.entry",
			Section: "directory", Got: `"no\tes"`, Want: "reader"}}}
	golden(t, "check", checkLines(&r, &output{}, page{}))
	golden(t, "check-raw", checkLines(&r, &output{noHeader: true}, page{}))
}
