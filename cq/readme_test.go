package cq_test

import (
	"os"
	"strings"
	"testing"
)

// TestReadmeCompiles: each Go block of the README that names an Example holds lines of it, in
// order, so that what a newcomer copies is what the compiler and the test runner have seen.
func TestReadmeCompiles(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, part := range strings.Split(string(readme), "<!-- from cq/example_test.go: ")[1:] {
		name, rest, _ := strings.Cut(part, " -->\n```go\n")
		block, _, ok := strings.Cut(rest, "```")
		_, body, found := strings.Cut(string(source), "func "+name+"() {\n")
		if !ok || !found {
			t.Errorf("no block or no example for %q", name)
			continue
		}
		body, _, _ = strings.Cut(body, "\n}\n")
		blocks++
		lines := strings.Split(body, "\n")
		for _, want := range strings.Split(strings.TrimSpace(block), "\n") {
			want = strings.TrimSpace(want)
			at := 0
			for at < len(lines) && strings.TrimSpace(lines[at]) != want {
				at++
			}
			if at == len(lines) {
				t.Errorf("%s: line is not in the example, or not in this order: %s", name, want)
				break
			}
			lines = lines[at+1:]
		}
	}
	if blocks != 2 {
		t.Errorf("%d blocks in the README", blocks)
	}
}
