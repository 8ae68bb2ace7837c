package testdata

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

//go:embed conformance.tsv
var conformance string

// Row is one demand of the pages that this library implements, and what became of it.
type Row struct {
	ID   string
	Page string // the page, or the list of tests, that it comes from
	What string
	Kind string // RowTest, RowDeviation or RowNone
	Ref  string // of a test its package and name, as "cq.TestX/case"; else the reason
}

// testName is compiled when it is needed: every process that a test starts has this package.
var testName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\b[\w/]+\.Test\w+(/[\w-]+)*`)
})

// Tests returns the tests that the row names, those in the text of a reason too.
func (r Row) Tests() []string { return testName().FindAllString(r.Ref, -1) }

// Kinds of rows.
const (
	RowTest      = "test" // the thing itself happens in it: reading a word back proves nothing
	RowDeviation = "deviation"
	RowNone      = "none" // it could happen, and no test here has it do so
)

var kinds = []string{RowTest, RowDeviation, RowNone}

var pages = []string{"fi_cq.3-2017", "fi_cq.3-later", "kfi_eq.3", "fi_poll.3", "ibv_get_cq_event",
	"fabtests", "rdma-core", "checklist", "beyond",
	// What becomes of a process's peers when it is killed, stopped, forked or replaced.
	"death",
	// Of the device path: the kernel's selftests, the tests of others, and our own.
	"xskxceiver", "libxdp", "go-afxdp", "xsk-rs", "device"}

const columns = "id\tpage\twhat\tkind\tref"

// Conformance returns the rows of conformance.tsv, or what is wrong with the first that cannot be
// right.
func Conformance() ([]Row, error) { return parse(conformance) }

func parse(text string) ([]Row, error) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if lines[0] != columns {
		return nil, fmt.Errorf("conformance.tsv: the first line is %q, want %q", lines[0], columns)
	}
	var rows []Row
	seen := map[string]bool{}
	for i, line := range lines[1:] {
		bad := func(what string) ([]Row, error) {
			return nil, fmt.Errorf("conformance.tsv:%d: %s: %q", i+2, what, line)
		}
		c := strings.Split(line, "\t")
		if len(c) != strings.Count(columns, "\t")+1 {
			return bad(fmt.Sprintf("%d columns", len(c)))
		}
		for _, cell := range c {
			if cell == "" || cell != strings.TrimSpace(cell) {
				return bad("an empty or padded cell")
			}
		}
		r := Row{ID: c[0], Page: c[1], What: c[2], Kind: c[3], Ref: c[4]}
		switch {
		case seen[r.ID]:
			return bad("the id stands twice")
		case !slices.Contains(pages, r.Page):
			return bad("no such page")
		case !slices.Contains(kinds, r.Kind):
			return bad("no such kind")
		case r.Kind == RowTest && testName().FindString(r.Ref) != r.Ref:
			return bad("not the name of a test")
		}
		seen[r.ID] = true
		rows = append(rows, r)
	}
	return rows, nil
}
