package testdata

import (
	"encoding/json"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

var (
	guardsFull  = flag.Bool("guards.full", false, "take away every guard, not a quick one only")
	guardsOnly  = flag.String("guards.only", "", "take away guards whose id matches `regexp`")
	guardsWrite = flag.Bool("guards.write", false, "write guards.md anew")
)

func guardRows(t *testing.T) []Guard {
	t.Helper()
	rows, err := Guards()
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// mutated returns the file without the guard.
func (g Guard) mutated(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("..", g.File))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), g.Old); n != 1 {
		t.Fatalf("%s: what the guard is stands %d times in the file, want once: %q", g.File, n, g.Old)
	}
	return strings.Replace(string(source), g.Old, g.New, 1)
}

// TestGuardsTable: a row whose code or test is gone says nothing any more.
func TestGuardsTable(t *testing.T) {
	rows := guardRows(t)
	quick := 0
	for _, g := range rows {
		g.mutated(t)
		dir, test := g.Package()
		name, _, _ := strings.Cut(test, "/")
		if !hasTest(t, filepath.Join("..", dir), name) {
			t.Errorf("%s: no test %s in %s", g.ID, name, dir)
		}
		if g.Quick {
			quick++
		}
	}
	if quick == 0 || len(rows) < 40 {
		t.Errorf("%d guards, %d of them quick", len(rows), quick)
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}

func TestGuardsPage(t *testing.T) {
	want := renderGuards(guardRows(t))
	if *guardsWrite {
		if err := os.WriteFile("guards.md", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("guards.md")
	if err != nil || string(got) != want {
		t.Errorf("guards.md is not what guards.tsv gives: run with -guards.write (%v)", err)
	}
}

func TestGuardsRefuse(t *testing.T) {
	const good = "a\tshm/a.go\twhat\told\\n\tnew\tTestX/sub\tquick"
	rows, err := parseGuards(guardColumns + "\n" + good + "\n")
	if err != nil || len(rows) != 1 || rows[0].Old != "old\n" || !rows[0].Quick {
		t.Fatal(rows, err)
	}
	rows, err = parseGuards(guardColumns + "\n" + good + " hang\n")
	if err != nil || len(rows) != 1 || rows[0].Falls != FallsHang || !rows[0].Quick {
		t.Fatal(rows, err)
	}
	for text, want := range map[string]string{
		guardColumns + "\n" + good + " late":                             "neither",
		good:                                                             "first line",
		guardColumns + "\n" + good[1:]:                                   "empty",
		guardColumns + "\n" + good + "er":                                "neither",
		guardColumns + "\n" + good + "\n" + good:                         "twice",
		guardColumns + "\na\tshm/a.go\twhat\told\tnew\tX\tquick":         "name of a test",
		guardColumns + "\na\tshm/a.go\twhat\told\told\tTestX\tquick":     "no change",
		guardColumns + "\na\tshm/a.go\twhat\told\tnew\tTestX\tquick\tno": "8 columns",
	} {
		if _, err := parseGuards(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// verdict is what became of a test of a package.
type verdict string

const (
	verdictPassed verdict = "passed"
	verdictFailed verdict = "failed" // or its process ended in the middle of it
	verdictHung   verdict = "hung"   // it had to be ended
	verdictBuild  verdict = "does not compile"
	verdictNone   verdict = "does not run: no such test, or it was skipped"
	verdictOther  verdict = "passed, and then the package failed" // what is left open, for example
)

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
}

// judge reads what go test -json said and tells what became of a test.
func judge(output []byte, test string) (verdict, string) {
	var text strings.Builder
	var build, run, passed, failed, skipped, hung, whole bool
	for line := range strings.Lines(string(output)) {
		var e event
		if json.Unmarshal([]byte(line), &e) != nil {
			text.WriteString(line)
			continue
		}
		text.WriteString(e.Output)
		hung = hung || strings.HasPrefix(e.Output, "panic: test timed out after ")
		switch {
		case e.Action == "build-fail":
			build = true
		case e.Action == "fail" && e.Test == "":
			whole = true
		case e.Test != test:
		case e.Action == "run":
			run = true
		case e.Action == "pass":
			passed = true
		case e.Action == "skip":
			skipped = true
		case e.Action == "fail":
			failed = true
		}
	}
	switch out := text.String(); {
	case build:
		return verdictBuild, out
	case hung:
		return verdictHung, out
	case !run || skipped:
		return verdictNone, out
	case failed || whole && !passed:
		return verdictFailed, out
	case whole:
		return verdictOther, out
	case passed:
		return verdictPassed, out
	default:
		return verdictNone, out
	}
}

// TestJudge: a mutant falls only if its test ran and failed.
func TestJudge(t *testing.T) {
	const ran = `{"Action":"run","Test":"TestX"}` + "\n"
	for name, c := range map[string]struct {
		out  string
		want verdict
	}{
		"passed":  {ran + `{"Action":"pass","Test":"TestX"}` + "\n" + `{"Action":"pass"}`, verdictPassed},
		"failed":  {ran + `{"Action":"fail","Test":"TestX"}` + "\n" + `{"Action":"fail"}`, verdictFailed},
		"skipped": {ran + `{"Action":"skip","Test":"TestX"}` + "\n" + `{"Action":"pass"}`, verdictNone},
		"none":    {`{"Action":"pass"}`, verdictNone},
		"build":   {`{"Action":"build-fail"}` + "\n" + `{"Action":"fail"}`, verdictBuild},
		"vet":     {"x.go:1: syntax error\n" + `{"Action":"fail"}`, verdictNone},
		"hung": {ran + `{"Action":"output","Test":"TestX","Output":"panic: test timed out after 9s\n"}` +
			"\n" + `{"Action":"fail","Test":"TestX"}`, verdictHung},
		"crashed": {ran + `{"Action":"output","Output":"panic: index\n"}` + "\n" +
			`{"Action":"fail"}`, verdictFailed},
		"leak": {ran + `{"Action":"pass","Test":"TestX"}` + "\n" + `{"Action":"fail"}`, verdictOther},
		"other": {`{"Action":"run","Test":"TestY"}` + "\n" + `{"Action":"fail","Test":"TestY"}` +
			"\n" + `{"Action":"fail"}`, verdictNone},
	} {
		if got, _ := judge([]byte(c.out), "TestX"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// allowed tells whether the verdict on a mutant is that the guard's test noticed: that it failed,
// or what the row says beside that.
func (g Guard) allowed(v verdict) bool {
	switch v {
	case verdictFailed:
		return true
	case verdictHung:
		return g.Falls == FallsHang
	case verdictOther:
		return g.Falls == FallsLeak
	}
	return false
}

func TestAllowed(t *testing.T) {
	for v, falls := range map[verdict]string{verdictHung: FallsHang,
		verdictOther: FallsLeak} {
		if (Guard{}).allowed(v) || !(Guard{Falls: falls}).allowed(v) {
			t.Errorf("%s: allowed without %q, or not with it", v, falls)
		}
	}
	for _, v := range []verdict{verdictPassed, verdictBuild, verdictNone} {
		for _, falls := range []string{"", FallsHang, FallsLeak} {
			if (Guard{Falls: falls}).allowed(v) {
				t.Errorf("%s is a fall", v)
			}
		}
	}
}

// controls are the tests that were run with every guard in place, by directory and name.
var controls sync.Map

// control runs the test of the guard as the tree is, once for all guards that it has.
func (g Guard) control(t *testing.T) (verdict, string) {
	type result struct {
		v   verdict
		out string
	}
	dir, test := g.Package()
	once, _ := controls.LoadOrStore(dir+" "+test, sync.OnceValue(func() result {
		v, out := g.run(t)
		return result{v, out}
	}))
	r := once.(func() result)()
	return r.v, r.out
}

// TestGuards takes guards away, one at a time, and demands that the test of each one fails, which
// it does not as long as the guard is there. The compiler gets the changed file by an overlay, so
// the tree stays as it is.
func TestGuards(t *testing.T) {
	only, err := regexp.Compile(*guardsOnly)
	if err != nil {
		t.Fatal(err)
	}
	rows := slices.DeleteFunc(guardRows(t), func(g Guard) bool {
		return !only.MatchString(g.ID) || !g.Quick && !*guardsFull && *guardsOnly == ""
	})
	if !*guardsFull && *guardsOnly == "" { // any of the quick ones
		one := rand.IntN(len(rows))
		rows = rows[one : one+1]
	}
	for _, g := range rows {
		t.Run(g.ID, func(t *testing.T) {
			t.Parallel()
			g.fall(t)
		})
	}
}

func (g Guard) fall(t *testing.T) {
	dir, test := g.Package()
	if v, out := g.control(t); v != verdictPassed {
		t.Fatalf("%s %s with the guard: %s\n%s", dir, test, v, out)
	}
	tmp := t.TempDir()
	changed := filepath.Join(tmp, filepath.Base(g.File))
	if err := os.WriteFile(changed, []byte(g.mutated(t)), 0o644); err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(root(t), g.File): changed}})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(tmp, "overlay.json")
	if err := os.WriteFile(overlay, list, 0o644); err != nil {
		t.Fatal(err)
	}
	v, out := g.run(t, "-overlay", overlay, "-timeout", g.timeout())
	if !g.allowed(v) {
		t.Errorf("%s: %s: %s %s without the guard: %s\n%s", g.File, g.What, dir, test, v, out)
	} else if testing.Verbose() {
		t.Logf("%s %s without the guard: %s", dir, test, v)
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// run runs the guard's test, with flags of go test. The last one of two counts.
func (g Guard) run(t *testing.T, flags ...string) (verdict, string) {
	t.Helper()
	dir, test := g.Package()
	args := append([]string{"test", "-json", "-vet=off", "-count=1", "-failfast",
		"-timeout", "100s", "-run", "^" + strings.ReplaceAll(test, "/", "$/^") + "$"}, flags...)
	cmd := exec.CommandContext(t.Context(), "go", append(args, "./"+dir)...)
	cmd.Dir = root(t)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return judge(out, test)
}

// timeout is how long a test may take: far longer than any does that comes to its end, and short
// where it is known that it does not.
func (g Guard) timeout() string {
	if g.Falls == FallsHang {
		return "30s"
	}
	return "100s"
}
