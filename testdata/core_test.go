package testdata

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
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

// byPath are calls that look a path up. Below the packages that handle objects everything goes
// through the descriptor of a directory that was checked once: between two looks at a path another
// user may have moved something there, and a process that changes its directory loses the way.
var byPath = map[string]string{
	"os": "Open OpenFile OpenInRoot Create CreateTemp Remove RemoveAll Rename Link Symlink Mkdir " +
		"MkdirAll MkdirTemp ReadFile WriteFile ReadDir Readlink Stat Lstat Chmod Chown Lchown Chtimes " +
		"Truncate Chdir CopyFS DirFS",
	"unix": "Open Creat Unlink Rmdir Rename Link Symlink Mkdir Mkfifo Mknod Stat Lstat Statfs " +
		"Access Readlink Chmod Chown Lchown Truncate Chdir Mount Connect Bind",
	"syscall": "Open Creat Unlink Rmdir Rename Link Symlink Mkdir Mkfifo Mknod Stat Lstat Statfs " +
		"Access Readlink Chmod Chown Lchown Truncate Chdir Connect Bind",
	"net":      "Listen ListenUnix ListenUnixgram Dial DialUnix DialTimeout",
	"filepath": "Walk WalkDir Glob EvalSymlinks",
}

// mayByPath are the functions that may do so, and why.
var mayByPath = map[string]string{
	"shm/sys_linux.go readOrNothing":                      "what the kernel says below /proc and /sys",
	"shm/process_linux.go sysStatFollow":                  "below /proc",
	"shm/process_linux.go threadsAlive":                   "below /proc",
	"internal/collect/leftover_linux.go isBound":          "below /proc/self/fd, for connect",
	"ctl/check.go path":                                   "it is the user's, and only read",
	"ctl/check.go entry":                                  "as above",
	"internal/inspect/queue.go CheckQueue":                "the user's, and only read",
	"internal/inspect/check.go withPage":                  "as above",
	"cmd/shmctl/internal/command/allusers.go dirsOfUsers": "a list of what all share",
}

func TestNoPathIsLookedUpAgain(t *testing.T) {
	used := map[string]bool{}
	for _, files := range []string{"shm/*", "ring/*", "doorbell/*", "internal/wake/*",
		"internal/place/*", "internal/kind/*", "internal/collect/*", "cq/*", "internal/inspect/*",
		"ctl/*", "cmd/shmctl/internal/command/allusers"} {
		files, err := filepath.Glob(filepath.Join("..", files+".go"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				lookups(t, file, used)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(mayByPath)) {
		if !used[name] {
			t.Errorf("%s looks up no path any more", name)
		}
	}
}

// lookups reports the calls of one file.
func lookups(t *testing.T, file string, used map[string]bool) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(filepath.ToSlash(file), "../")
	for _, d := range tree.Decls {
		in, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		ast.Inspect(in, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !looksUp(call) {
				return true
			}
			key := name + " " + in.Name.Name
			if used[key] = true; mayByPath[key] == "" {
				t.Errorf("%s: %s looks up a path: do it by the descriptor of its directory",
					set.Position(call.Pos()), in.Name.Name)
			}
			return true
		})
	}
}

// looksUp reports a call of the list, unless its path is written there and begins with /proc.
func looksUp(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := sel.X.(*ast.Ident)
	if !ok || !slices.Contains(strings.Fields(byPath[pkg.Name]), sel.Sel.Name) {
		return false
	}
	inProc := false
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			inProc = inProc || ok && strings.HasPrefix(lit.Value, `"/proc/`)
			return true
		})
	}
	return !inProc
}
