package testdata

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCoreImports: the core and all that it imports of this module import two modules of others.
// What imports it is asked of the list of packages, so that a package that moves stays under the
// rule.
func TestCoreImports(t *testing.T) {
	const module = "github.com/shmring/shmring/"
	allowed := []string{"golang.org/x/sys/", "github.com/edsrzf/mmap-go"}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f",
		"{{if not .Standard}}{{.ImportPath}}{{end}}", "./shm", "./ring", "./doorbell", "./cq")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	deps := strings.Fields(string(out))
	for _, dep := range deps {
		if !strings.HasPrefix(dep, module) &&
			!slices.ContainsFunc(allowed, func(a string) bool { return strings.HasPrefix(dep, a) }) {
			t.Errorf("the core imports %s", dep)
		}
	}
	if !slices.Contains(deps, module+"cq") {
		t.Errorf("the packages of the core are not in the list: %q", deps)
	}
}

// upwards are imports that the order of the rooms forbids, from a package and what is below it to
// another one, be it through a third.
var upwards = map[string][]string{
	"shm":      {"ring", "doorbell", "cq", "ctl", "xdp", "fabric", "cmd"},
	"ring":     {"doorbell", "cq", "ctl", "xdp", "fabric", "cmd"},
	"doorbell": {"ring", "cq", "ctl", "xdp", "fabric", "cmd"},
	"cq":       {"ctl", "xdp", "fabric", "cmd"},
	"ctl":      {"xdp", "fabric", "cmd"},
	"xdp":      {"ctl", "fabric", "cmd"},
	"fabric":   {"ctl", "xdp", "cmd"},
	"internal": {"ctl", "fabric", "cmd"},
}

func TestImportsPointDown(t *testing.T) {
	const module = "github.com/shmring/shmring/"
	cmd := exec.CommandContext(t.Context(), "go", "list", "-f",
		`{{.ImportPath}}:{{join .Deps " "}}`, "./...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		path, imports, _ := strings.Cut(strings.TrimSpace(line), ":")
		path = strings.TrimPrefix(path, module)
		room, _, _ := strings.Cut(path, "/")
		seen[room] = true
		for _, to := range strings.Fields(imports) {
			up, mine := strings.CutPrefix(to, module)
			up, _, _ = strings.Cut(up, "/")
			if mine && slices.Contains(upwards[room], up) {
				t.Errorf("%s depends on %s", path, to)
			}
		}
	}
	for room := range upwards {
		if !seen[room] {
			t.Errorf("no package below %s", room)
		}
	}
}

// TestConformanceNamesTests: a row's test is in its package, whose TestMain asks at the end whether
// all rows were proved.
func TestConformanceNamesTests(t *testing.T) {
	rows, err := Conformance()
	if err != nil {
		t.Fatal(err)
	}
	mains := map[string]bool{}
	for _, r := range rows {
		for _, ref := range r.Tests() {
			dir, test, _ := strings.Cut(ref, ".Test")
			name, _, _ := strings.Cut("Test"+test, "/")
			if !hasTest(t, filepath.Join("..", dir), name) {
				t.Errorf("%s: no test %s in %s", r.ID, name, dir)
			}
			if _, known := mains[dir]; !known {
				mains[dir] = hasTest(t, filepath.Join("..", dir), "TestMain")
				if !mains[dir] {
					t.Errorf("%s: nothing in %s asks whether its tests ran", r.ID, dir)
				}
			}
		}
	}
}
