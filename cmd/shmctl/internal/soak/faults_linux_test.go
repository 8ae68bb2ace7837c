package soak

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/internal/shmtest"
)

func TestMain(m *testing.M) {
	shmtest.Main(m, map[string]func(){
		"sleeper": func() { _, _ = io.Copy(io.Discard, os.Stdin) },
	})
}

// TestFreezeGivesBack: a process that was frozen is in the control group that it was in before.
func TestFreezeGivesBack(t *testing.T) {
	freezer, err := makeFreezer()
	if err != nil {
		shmtest.Require(t, "cgroups", err)
	}
	own := freezer + "-own"
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	child := shmtest.Child(t, "sleeper")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = child.Wait()
		if err := errors.Join(os.Remove(own), os.Remove(freezer)); err != nil {
			t.Error(err)
		}
	}()
	pid := child.Process.Pid
	if err := os.WriteFile(own+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0); err != nil {
		shmtest.Require(t, "cgroups", err)
	}
	f := &faults{rnd: rand.New(rand.NewPCG(1, 1)), freezer: freezer}
	f.freeze(pid)
	group, err := groupOf(pid, filepath.Dir(freezer))
	if group != own || err != nil || f.done.Freezes != 1 {
		t.Errorf("in %s, was in %s: %v; %d freezes", group, own, err, f.done.Freezes)
	}
}

// TestLeftOut: what the machine lacks is left out and said, once for each reason.
func TestLeftOut(t *testing.T) {
	lacks := func(name string) error {
		switch name {
		case "device", "app":
			return errors.New("no device")
		case "others-writer":
			return errors.New("not root")
		}
		return nil
	}
	_, said := torture.Able([]string{"reader", "device", "app", "others-writer"}, lacks)
	want := []string{"device, app: no device", "others-writer: not root"}
	if !slices.Equal(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
	got := able([][]string{{"device"}, nil, {"reader", "app"}, {"others-writer"}}, lacks)
	if len(got) != 2 || len(got[0]) != 0 || !slices.Equal(got[1], []string{"reader"}) {
		t.Errorf("played %q", got)
	}
}
