package testdata

import (
	_ "embed"
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"
)

//go:embed guards.tsv
var guards string

// Guard is one line of code without which something is lost or believed that must not be, and the
// test that notices when it is taken away.
type Guard struct {
	ID    string
	File  string // from the root of the module
	What  string // what the line keeps from happening
	Old   string // text that stands in the file exactly once
	New   string // what takes the guard away
	Test  string // in the package of the file, unless it names another one as "cq.TestX"
	Quick bool   // also run without a flag
	Falls string // FallsHang, FallsLeak or empty: the test fails
}

// How a test notices that a guard is gone, other than that it fails.
const (
	FallsHang = "hang" // it does not come to its end
	FallsLeak = "leak" // it passes, and the package finds what was left open, mapped or running
)

const guardColumns = "id\tfile\twhat\told\tnew\ttest\trun"

var guardTest = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([\w/]+\.)?Test\w+(/[\w.,-]+)*$`)
})

// Guards returns the rows of guards.tsv, or what is wrong with the first that cannot be right. Line
// ends and tabs of code are written \n and \t there.
func Guards() ([]Guard, error) { return parseGuards(guards) }

func parseGuards(text string) ([]Guard, error) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if lines[0] != guardColumns {
		return nil, fmt.Errorf("guards.tsv: the first line is %q, want %q", lines[0], guardColumns)
	}
	code := strings.NewReplacer(`\n`, "\n", `\t`, "\t")
	var rows []Guard
	seen := map[string]bool{}
	for i, line := range lines[1:] {
		bad := func(what string) ([]Guard, error) {
			return nil, fmt.Errorf("guards.tsv:%d: %s: %q", i+2, what, line)
		}
		c := strings.Split(line, "\t")
		if len(c) != strings.Count(guardColumns, "\t")+1 {
			return bad(fmt.Sprintf("%d columns", len(c)))
		}
		g := Guard{ID: c[0], File: c[1], What: c[2], Old: code.Replace(c[3]), New: code.Replace(c[4]),
			Test: c[5]}
		run, falls, _ := strings.Cut(c[6], " ")
		g.Quick, g.Falls = run == "quick", falls
		switch {
		case g.ID == "" || g.What == "" || g.Old == "" || g.Old == g.New:
			return bad("an empty cell, or no change")
		case seen[g.ID]:
			return bad("the id stands twice")
		case !guardTest().MatchString(g.Test):
			return bad("not the name of a test")
		case run != "quick" && run != "full",
			falls != "" && falls != FallsHang && falls != FallsLeak:
			return bad("neither quick nor full, with hang or leak behind it or nothing")
		}
		seen[g.ID] = true
		rows = append(rows, g)
	}
	return rows, nil
}

// Package returns the directory of the test's package, and the test.
func (g Guard) Package() (dir, test string) {
	if dir, test, ok := strings.Cut(g.Test, ".Test"); ok {
		return dir, "Test" + test
	}
	return path.Dir(g.File), g.Test
}

// guardsRun is how many rows were there when all of them were run last.
const guardsRun = 195

// renderGuards is the table for people.
func renderGuards(rows []Guard) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Guards, and the tests that fall without them\n\n"+
		"Made from guards.tsv by `go test ./testdata -run TestGuardsPage -guards.write`. Each row is\n"+
		"a change of one place in the code that takes a guard away. `go test ./testdata -run\n"+
		"TestGuards -guards.full` makes every change in turn, for the compiler only, and demands that\n"+
		"the named test passes before, compiles, and fails then; without the flag it does so for one\n"+
		"of the rows marked quick. Where the row says hang it does not come to its end; where it says\n"+
		"leak, the package finds behind it what was left. The guards of the wake-up protocols stand in\n"+
		"guards_models.md beside this page.\n\n"+
		"The table has %d rows. On 2026-11-22, when it had %d, all of it was run, two at a time beside\n"+
		"other work, in several goes: each test passed with its guard and failed without it, or hung\n"+
		"where the row says so. Two rows were mended for that: a test that took longer to fail than\n"+
		"it is given, and one that hangs and did not say it.\n",
		len(rows), guardsRun)
	file := ""
	for _, g := range rows {
		if g.File != file {
			file = g.File
			fmt.Fprintf(&b, "\n## %s\n\n| guard | without it | falls | |\n|---|---|---|---|\n", file)
		}
		how := g.Falls
		if g.Quick {
			how = strings.TrimSpace("quick " + how)
		}
		dir, test := g.Package()
		if dir == path.Dir(g.File) {
			dir = ""
		} else {
			dir += " "
		}
		fmt.Fprintf(&b, "| %s | %s | %s%s | %s |\n", g.ID, g.What, dir, test, how)
	}
	return b.String()
}
