package testdata

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var (
	guardsFull  = flag.Bool("guards.full", false, "take away every guard, not the quick ones only")
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
