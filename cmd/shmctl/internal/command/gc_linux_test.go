package command

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/shm"
)

func collected(t *testing.T, text string) gcResult {
	t.Helper()
	return parsed[gcResult](t, "gc", text)
}

func TestGC(t *testing.T) {
	d := newDir(t)
	everything(t, d)
	kept := createQueue(t, d, "kept", cq.Options{Size: 8, Lifetime: cq.Persistent})
	must(t, kept.Detach())
	must(t, os.WriteFile(filepath.Join(d.Path(), "notes"), []byte("no object"), 0o600))
	must(t, os.Mkdir(filepath.Join(d.Path(), "empty"), 0o700))

	before := state(t, d.Path())
	text := ok(t, "gc")
	has(t, text, "orders", "living", "left by its owner", "garbage",
		"no object of this library", "1 of 8 would be removed, 0: shmctl gc --remove")
	r := collected(t, ok(t, "gc", "-j"))
	if r.Remove || r.Garbage != 1 || r.Removed+r.Failed != 0 || len(r.Remains) != 8 {
		t.Errorf("%+v", r)
	}
	if diff := cmp.Diff(before, state(t, d.Path())); diff != "" {
		t.Errorf("looking changed the directory:\n%s", diff)
	}
	r = collected(t, ok(t, "gc", "--remove", "-j"))
	if !r.Remove || r.Garbage+r.Failed != 0 || r.Removed != 1 {
		t.Errorf("%+v", r)
	}
	has(t, ok(t, "gc"), "nothing of 7 would be removed")
	if r := run(t, "gc", "-r", "--persistent-too", "orders"); r.code != ctl.CodeFailure ||
		!strings.Contains(r.stderr, "shmctl: gc orders: stays: process ") {
		t.Errorf("%+v", r)
	}
	refused(t, "gc -r --persistent-too nobody", ctl.CodeNotFound)
	r = collected(t, ok(t, "gc", "-r", "--persistent-too", "kept", "-j"))
	if r.Removed != 1 || r.Bytes == 0 {
		t.Errorf("%+v", r)
	}
	must(t, os.Remove(filepath.Join(d.Path(), "notes")))
	if r := run(t, "gc", "--dir", filepath.Join(d.Path(), "none")); r.code != ctl.CodeNotFound {
		t.Errorf("%+v", r)
	}
	r2 := run(t, "__complete", "gc", "--persistent-too", "")
	has(t, r2.stdout, "orders\n")
}

func TestGCTables(t *testing.T) {
	life, pid := "alive", 42
	p := ctl.Process{PID: &pid, Life: &life}
	cannot := ctl.NewProblem(&shm.Error{Op: "open", Name: "cut", Field: "size", Got: 1,
		Want: 4096, Err: shm.ErrTruncated})
	all := []ctl.Remains{
		{Name: "cut\n", Fate: "damaged", Reason: "damaged", Error: cannot},
		{Name: "orders", Kind: new("queue"), Fate: "living", Process: &p, Unread: new(uint64(3)),
			Reason: "process 42 lives and has it", SizeBytes: new(uint64(81920))},
		{Name: "stale", Kind: new("queue"), Fate: "garbage", Unread: new(uint64(0)),
			Reason: "its reader and all writers are gone", SizeBytes: new(uint64(65536))},
		{Name: "locked", Kind: new("counter"), Fate: "failed", SizeBytes: new(uint64(8192)),
			Reason: "garbage that cannot be removed", Error: ctl.NewProblem(errors.New("no"))}}
	dry := sumUp(false, all)
	golden(t, "gc", gcLines(&dry, &output{}, page{}))
	all[2].Fate = "removed"
	done := sumUp(true, all)
	golden(t, "gc-remove", gcLines(&done, &output{raw: true}, page{}))
	golden(t, "gc-raw", gcLines(&done, &output{raw: true, noHeader: true}, page{}))
	if done.Failed != 1 || done.Removed != 1 || done.Bytes != 65536 {
		t.Errorf("%+v", done)
	}
}
