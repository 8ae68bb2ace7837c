package testdata

import (
	"bufio"
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// inlined are the calls that must leave nothing behind, by the function that makes them and its
// package: a post to a lane with room, and a read of what one writer posted, call nobody.
var inlined = map[string][]string{
	"cq Post": {"(*guard).enterAlone", "(*guard).leaveAlone", "plainCount",
		"ring.(*Producer).Next", "ring.(*Producer).Tail", "ring.(*Producer).Commit",
		"wake.(*Ringer).Flags", "wake.(*Ringer).Published", "ring.storeRelease"},
	"cq writeOnce": {"ring.(*Producer).Next", "ring.(*Producer).Commit",
		"wake.(*Ringer).Published"},
	"cq readOpen": {"cq.(*core).quiet", "cq.(*lane).waiting", "cq.(*lane).look",
		"cq.(*lane).span", "cq.(*lane).note", "cq.(*lane).free", "cq.(*lane).atStart",
		"cq.bytesOf", "cq.copySources", "ring.storeRelease"},
	"cmd/shmctl/internal/bench counterRead": {"cq.(*Counter).Read"},
	"cq commit":                             {"ring.(*Producer).Commit", "wake.(*Ringer).Published"},
	"cq readFrom": {"cq.(*core).shared", "cq.(*core).only", "cq.(*guard).enterAlone",
		"cq.(*guard).leaveAlone", "cq.(*lane).waits", "cq.(*lane).moved", "cq.(*lane).overran",
		"cq.(*lane).waiting", "cq.(*lane).look", "cq.(*lane).span", "cq.(*lane).note",
		"cq.(*lane).free", "cq.(*lane).atStart", "cq.bytesOf", "cq.copySources",
		"wake.(*Bell).Only", "ring.(*Consumer).Release", "ring.storeRelease"},
}

var (
	inliningCall  = regexp.MustCompile(`^([^:]+\.go):(\d+):\d+: inlining call to (.*)$`)
	typeArguments = regexp.MustCompile(`\[.*\]`)
)

// TestInlined asks the compiler what it inlined: no benchmark needs to find a call that came back.
func TestInlined(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the core with a report; run without -short")
	}
	// What reads queues is compiled too: generic functions are where they are used.
	cmd := exec.CommandContext(t.Context(), "go", "build", "-gcflags=-m=1",
		"./ring", "./internal/wake", "./cq", "./cmd/shmctl/internal/bench")
	cmd.Dir = root(t)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	got := callsInlined(t, out)
	for in, calls := range inlined {
		for _, call := range calls {
			if !got[in+" "+call] {
				t.Errorf("%s: the call of %s is not inlined", in, call)
			}
		}
	}
}

// callsInlined returns "package function callee" for each line of the compiler's report.
func callsInlined(t *testing.T, report []byte) map[string]bool {
	t.Helper()
	sources := map[string]func(line int) string{}
	got := map[string]bool{}
	for s := bufio.NewScanner(bytes.NewReader(report)); s.Scan(); {
		m := inliningCall.FindStringSubmatch(s.Text())
		if m == nil || filepath.IsAbs(m[1]) {
			continue
		}
		line, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		if sources[m[1]] == nil {
			sources[m[1]] = functions(t, m[1])
		}
		in := filepath.ToSlash(filepath.Dir(m[1])) + " " + sources[m[1]](line)
		got[in+" "+typeArguments.ReplaceAllString(m[3], "")] = true
	}
	return got
}

// functions returns what tells the name of the function that a line of a file stands in.
func functions(t *testing.T, file string) func(line int) string {
	t.Helper()
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, filepath.Join(root(t), file), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return func(line int) string {
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && set.Position(f.Pos()).Line <= line &&
				line <= set.Position(f.End()).Line {
				return f.Name.Name
			}
		}
		return ""
	}
}
