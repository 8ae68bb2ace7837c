package testdata

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadmeCompiles: each Go block of the README names an Example and holds lines of it, in order,
// so that what a newcomer copies is what the compiler, and mostly the test runner, have seen.
func TestReadmeCompiles(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, part := range strings.Split(string(readme), "<!-- from ")[1:] {
		file, rest, _ := strings.Cut(part, ": ")
		name, rest, _ := strings.Cut(rest, " -->\n```go\n")
		block, _, ok := strings.Cut(rest, "```")
		source, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Error(err)
			continue
		}
		_, body, found := strings.Cut(string(source), "func "+name+"() {\n")
		if !ok || !found {
			t.Errorf("no block or no example for %q in %s", name, file)
			continue
		}
		body, _, _ = strings.Cut(body, "\n}\n")
		blocks++
		for _, want := range missing(block, body) {
			t.Errorf("%s: line is not in the example, or not in this order: %s", name, want)
		}
	}
	if n := strings.Count(string(readme), "```go\n"); blocks != n || n == 0 {
		t.Errorf("%d of %d Go blocks in the README are from examples", blocks, n)
	}
}

// TestReadmeMeets: its producer posts to the queue that its consumer reads, so that what is copied
// into two programs meets.
func TestReadmeMeets(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	queue := func(call string) string {
		_, rest, _ := strings.Cut(string(readme), call)
		_, rest, _ = strings.Cut(rest, `"`)
		name, _, _ := strings.Cut(rest, `"`)
		return name
	}
	if w, r := queue("= cq.Attach("), queue("= cq.Open("); w != r || w == "" {
		t.Errorf("the producer posts to %q, the consumer reads %q", w, r)
	}
}

// missing returns the first line of block that body has not, or has earlier.
func missing(block, body string) []string {
	lines := strings.Split(body, "\n")
	for want := range strings.SplitSeq(strings.TrimSpace(block), "\n") {
		want = strings.TrimSpace(want)
		at := 0
		for at < len(lines) && strings.TrimSpace(lines[at]) != want {
			at++
		}
		if at == len(lines) {
			return []string{want}
		}
		lines = lines[at+1:]
	}
	return nil
}
