package cq_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

var limitsReport = flag.Bool("limits.report", false,
	"note the figures of tests at limits in testdata/reports/limits.md")

const limitsHead = `# At limits: figures of the tests

Made by "go test ./cq -run NAME -limits.slow 1m -limits.report", one test after the other, on
%s. Memory is the most that a process had
resident at any time until then, in KiB. The tests, of which the first takes less than a second with
the others, hold memory, threads and losses to bounds.

| test | figures |
|---|---|
`

// reportLimits notes figures as the row of a test, beside the rows of the others.
func reportLimits(t *testing.T, format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	t.Log(text)
	if !*limitsReport || t.Failed() {
		return
	}
	const file = "../testdata/reports/limits.md"
	rows := map[string]string{}
	old, _ := os.ReadFile(file)
	for line := range strings.Lines(string(old)) {
		if name, _, _ := strings.Cut(line, " | "); strings.HasPrefix(name, "| Test") {
			rows[name] = line
		}
	}
	rows["| "+t.Name()] = fmt.Sprintf("| %s | %s |\n", t.Name(), text)
	page := fmt.Sprintf(limitsHead, shmtest.Machine())
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		page += rows[name]
	}
	must(t, os.WriteFile(file, []byte(page), 0o644))
}
