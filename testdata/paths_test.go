package testdata

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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
	"shm/process_linux.go processAlive":                   "below /proc",
	"shm/sys_linux.go sysBound":                           "below /proc/self/fd, for connect",
	"ctl/check.go path":                                   "it is the user's, and only read",
	"ctl/check.go entry":                                  "as above",
	"internal/inspect/queue.go CheckQueue":                "the user's, and only read",
	"internal/inspect/check.go withPage":                  "as above",
	"cmd/shmctl/internal/command/allusers.go dirsOfUsers": "a list of what all share",
}

func TestNoPathIsLookedUpAgain(t *testing.T) {
	used := map[string]bool{}
	for _, files := range []string{"shm/*", "ring/*", "doorbell/*", "internal/place/*",
		"internal/kind/*", "internal/collect/*", "cq/*", "internal/inspect/*", "ctl/*",
		"cmd/shmctl/internal/command/allusers"} {
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
