package shmtest

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shmring/shmring/testdata"
)

func TestMain(m *testing.M) {
	if os.Getenv(envLeak) != "" && Role() == "" {
		settleTries = 4 // what is leaked on demand stays
		os.Exit(run(m)) // without the roles, to let the leak be found
	}
	Main(m, map[string]func(){"hello": func() { os.Stdout.WriteString("hello") },
		"broken": func() { Need(os.ErrClosed) },
		"stays":  UntilTold})
}

const envLeak = "SHMRING_TEST_LEAK"

// TestLeaker leaks, or fails, on demand.
func TestLeaker(t *testing.T) {
	switch os.Getenv(envLeak) {
	case "file":
		if err := os.WriteFile(filepath.Join(os.Getenv(envDir), "left"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	case "descriptor":
		var err error
		if leaked, err = os.Open("/dev/null"); err != nil {
			t.Fatal(err)
		}
	case "process":
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), envLeak+"=", envRole+"=stays")
		cmd.Stdin = os.Stdin
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	case "must":
		Must(t, os.ErrClosed)
		t.Error("goes on")
	case "want":
		WantErr(t, "one of two", os.ErrClosed, os.ErrClosed, os.ErrExist)
	case "says":
		Start(t, Child(t, "hello")).Says(t, "hell")
	case "fails":
		_ = Start(t, Child(t, "broken")).Stop(t)
	case "fine":
		Must(t, nil)
		WantErr(t, "both", fs.ErrExist, os.ErrExist, fs.ErrExist)
		Start(t, Child(t, "hello")).Says(t, "hello")
	case "need":
		Require(t, "moon", errors.New("no moon tonight"))
		t.Error("goes on without what it needs")
	}
}

// leaked keeps its file from being closed by the garbage collector.
var leaked *os.File

// TestGate: what is left, or is not as it should be, fails the run.
func TestGate(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("descriptors cannot be listed without /proc")
	}
	for kind, want := range map[string]string{"file": "/left", "descriptor": "/dev/null",
		"process": "\tprocess ", "none": "", "must": os.ErrClosed.Error(), "want": "one of two",
		"says": `"hello"`, "fails": "exit status 3", "fine": ""} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLeaker$")
		cmd.Env = append(os.Environ(), envLeak+"="+kind)
		_, err := cmd.StdinPipe() // its end, with the run, ends the process that is left
		Must(t, err)
		out, err := cmd.CombinedOutput()
		if text := string(out); (err != nil) != (want != "") || !strings.Contains(text, want) ||
			strings.Contains(text, "goes on") {
			t.Errorf("%s: %v\n%s", kind, err, out)
		}
	}
}

// TestRequire: what is not there is a skip with its reason, unless somebody insists on it.
func TestRequire(t *testing.T) {
	for require, passes := range map[string]bool{"": true, "sun,moonlight": true, "moon": false,
		"sun,moon,stars": false} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLeaker$", "-test.v")
		cmd.Env = append(os.Environ(), envLeak+"=need", envRequire+"="+require)
		out, err := cmd.CombinedOutput()
		text := string(out)
		if (err == nil) != passes || strings.Contains(text, "--- SKIP") != passes ||
			!strings.Contains(text, "no moon tonight") || strings.Contains(text, "goes on") {
			t.Errorf("%s=%q: %v\n%s", envRequire, require, err, text)
		}
	}
}

func TestChildPlaysItsRole(t *testing.T) {
	out, err := Child(t, "hello").Output()
	if err != nil || string(out) != "hello" {
		t.Errorf("%q, %v", out, err)
	}
	cmd := Child(t, "unknown")
	cmd.Stderr = nil
	if err := cmd.Run(); err == nil {
		t.Error("an unknown role succeeds")
	}
}

func TestMissing(t *testing.T) {
	rows := []testdata.Row{
		{ID: "a", Kind: testdata.RowTest, Ref: "cq.TestX/one"},
		{ID: "b", Kind: testdata.RowTest, Ref: "cq.TestX"},
		{ID: "c", Kind: testdata.RowTest, Ref: "cq.TestX/on"},
		{ID: "d", Kind: testdata.RowTest, Ref: "ring.TestY"},
		{ID: "e", Kind: testdata.RowDeviation, Ref: "another way, see cq.TestX/one"},
		{ID: "f", Kind: testdata.RowDeviation, Ref: "another way: cq.TestZ."},
	}
	got := missing(rows, "cq", []string{"cq.TestX/one/named", "ring.TestX/on"})
	want := []string{"conformance row c: cq.TestX/on did not run",
		"conformance row f: cq.TestZ did not run"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := missing(rows, "ring", []string{"ring.TestY"}); len(got) != 0 {
		t.Error(got)
	}
}

func TestNamed(t *testing.T) {
	refs := map[string]bool{"cq.TestX/one": true, "cq.TestY": true}
	for name, want := range map[string]bool{"cq.TestX/one": true, "cq.TestX/one/a/b": true,
		"cq.TestX": false, "cq.TestX/on": false, "cq.TestX/ones": false, "cq.TestY/a": true,
		"cq/a.TestY": false} {
		if named(refs, name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestPackagePath(t *testing.T) {
	if got := packagePath(); got != "internal/shmtest" {
		t.Error(got)
	}
}
