package testdata

import (
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shmring/shmring/ctl"
)

// documents are the pages that people read, by their paths in the repository, with their text.
func documents(t *testing.T) map[string]string {
	t.Helper()
	var files []string
	for _, pattern := range []string{"../*.md", "../docs/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, err)
		}
		files = append(files, found...)
	}
	out := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimPrefix(filepath.ToSlash(file), "../")] = string(text)
	}
	return out
}

// TestReadmeIsShort: what does not fit into it stands in docs.
func TestReadmeIsShort(t *testing.T) {
	pages := documents(t)
	if n := len(pages["README.md"]); n > 10_000 {
		t.Errorf("README.md has %d bytes, want at most 10000", n)
	}
	if n := strings.Count(pages["docs/tour.md"], "\n"); n > 150 {
		t.Errorf("docs/tour.md has %d lines, want at most 150", n)
	}
}

// TestDocumentsQuote: each Go block names a program and is the whole of it, or names a function and
// holds lines of it, in order, so that what a newcomer copies is what the compiler, and mostly the
// test runner, have seen.
func TestDocumentsQuote(t *testing.T) {
	for page, text := range documents(t) {
		blocks := 0
		for _, part := range strings.Split(text, "<!-- from ")[1:] {
			from, rest, _ := strings.Cut(part, " -->\n```go\n")
			block, _, ok := strings.Cut(rest, "```\n")
			file, name, inside := strings.Cut(from, ": ")
			source, err := os.ReadFile(filepath.Join("..", file))
			if err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			blocks++
			if !inside {
				if block != string(source) {
					t.Errorf("%s: the block is not %s", page, file)
				}
				continue
			}
			_, body, found := strings.Cut(string(source), "func "+name+"() {\n")
			if !ok || !found {
				t.Errorf("%s: no block or no function for %q", page, from)
			}
			body, _, _ = strings.Cut(body, "\n}\n")
			for _, want := range missing(block, body) {
				t.Errorf("%s: line is not in %s, or not in this order: %s", page, from, want)
			}
		}
		if n := strings.Count(text, "```go\n"); blocks != n || n == 0 && page == "README.md" {
			t.Errorf("%s: %d of %d Go blocks are quoted from a file", page, blocks, n)
		}
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

var (
	linked = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	quoted = regexp.MustCompile("`([^`\n]+)`")
	isPath = regexp.MustCompile(`^[.\w-]+(/[.\w-]+)+/?$|^[\w-]+\.(go|md|tsv)$`)
	isTest = regexp.MustCompile(`^([\w/]+)\.(Test\w+)$`)
)

// TestDocumentsNameWhatIs: files, packages and tests that a page names are there.
func TestDocumentsNameWhatIs(t *testing.T) {
	for page, text := range documents(t) {
		for _, m := range linked.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join("..", filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: the link leads nowhere: %v", page, err)
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			if test := isTest.FindStringSubmatch(m[1]); test != nil {
				if !hasTest(t, filepath.Join("..", test[1]), test[2]) {
					t.Errorf("%s: there is no test %s", page, m[1])
				}
			} else if isPath.MatchString(m[1]) {
				if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
					t.Errorf("%s: there is no %s", page, m[1])
				}
			}
		}
	}
}

// TestPackagesNameTheirFiles: each file, or group of files, that a package comment lists under
// "# Files" is there.
func TestPackagesNameTheirFiles(t *testing.T) {
	files, err := filepath.Glob("../*/*.go")
	deeper, deeperErr := filepath.Glob("../*/*/*.go")
	if err != nil || deeperErr != nil {
		t.Fatal(err, deeperErr)
	}
	lists := 0
	for _, file := range append(files, deeper...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, list, listed := strings.Cut(string(text), "\n// # Files\n//\n")
		if !listed || strings.HasSuffix(file, "_test.go") {
			continue
		}
		lists++
		for line := range strings.Lines(list) {
			names, ok := strings.CutPrefix(line, "//\t")
			if !ok {
				break
			}
			names, _, _ = strings.Cut(names, "  ")
			for name := range strings.SplitSeq(names, ", ") {
				group := filepath.Join(filepath.Dir(file), strings.TrimSpace(name))
				one, _ := filepath.Glob(group + ".go")
				more, _ := filepath.Glob(group + "_*.go")
				if _, err := os.Stat(group); err != nil && len(one)+len(more) == 0 {
					t.Errorf("%s: there is no %s", file, name)
				}
			}
		}
	}
	if lists < 8 {
		t.Errorf("only %d packages list their files", lists)
	}
}

// TestOperationsHasEveryState: what shmctl calls the state of something is explained.
func TestOperationsHasEveryState(t *testing.T) {
	text := documents(t)["docs/operations.md"]
	for _, state := range ctl.States() {
		if state != ctl.StateOpen && !strings.Contains(text, "\n| `"+state+"` | ") {
			t.Errorf("nothing says what to do about %q", state)
		}
	}
}

// TestDocumentsQuoteInOneLine: what is quoted over the end of a line would not be looked at.
func TestDocumentsQuoteInOneLine(t *testing.T) {
	for page, text := range documents(t) {
		block := false
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "```") {
				block = !block
			} else if !block && strings.Count(line, "`")%2 != 0 {
				t.Errorf("%s: a quote goes over the end of the line: %s", page, line)
			}
		}
	}
}

// commands are what a page says to type: the lines of blocks without a language, and what stands in
// the text between quotes and begins with the name of a program.
func commands(text string) (out []string) {
	begins := regexp.MustCompile(`^(go|shmctl|make|\.ci/\w+)( |$)`)
	var block, goes bool
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			block, goes = !block, line != "```\n"
			continue
		}
		candidates := []string{line}
		if !block {
			candidates = nil
			for _, m := range quoted.FindAllStringSubmatch(line, -1) {
				candidates = append(candidates, m[1])
			}
		}
		for _, c := range candidates {
			c, _, _ = strings.Cut(c, " #")
			if c = strings.TrimSpace(c); begins.MatchString(c) && !(block && goes) {
				out = append(out, c)
			}
		}
	}
	return out
}

// words splits a command as a shell does that knows single quotes only.
func words(command string) (out []string) {
	for i, part := range strings.Split(command, "'") {
		if i%2 == 1 {
			out = append(out, part)
		} else {
			out = append(out, strings.Fields(part)...)
		}
	}
	return out
}

// TestDocumentsCommands: packages, tests, flags and targets of each command are there. What shmctl
// is to do is done in TestDocumentsRun.
func TestDocumentsCommands(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for page, text := range documents(t) {
		for _, command := range commands(text) {
			w := words(command)
			bad := ""
			switch {
			case w[0] == "go" && len(w) > 1 && w[1] == "test":
				bad = badTest(t, w[2:])
			case w[0] == "go" && len(w) > 2 && slices.Contains([]string{"run", "doc"}, w[1]):
				bad = noPackage(w[2])
			case w[0] == "make" && len(w) == 2:
				if !strings.Contains(string(makefile), "\n"+w[1]+":") {
					bad = "no such target"
				}
			case strings.HasPrefix(w[0], ".ci/"):
				if _, err := os.Stat(filepath.Join("..", w[0])); err != nil {
					bad = err.Error()
				}
			}
			seen++
			if bad != "" {
				t.Errorf("%s: %s: %s", page, command, bad)
			}
		}
	}
	if seen < 30 {
		t.Errorf("only %d commands were found", seen)
	}
}

// noPackage says what is wrong with a package's path.
func noPackage(path string) string {
	path = strings.TrimPrefix(path, "github.com/shmring/shmring/")
	dir := filepath.Join("..", strings.TrimSuffix(path, "/..."))
	files, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	if len(files) == 0 && !strings.HasSuffix(path, "...") {
		return "no package " + path
	}
	return ""
}

// badTest says what is wrong with the arguments of go test: each alternative of -run and -bench
// has to match something, and a flag of a test's own has to be defined there.
func badTest(t *testing.T, args []string) string {
	var dirs, patterns, flags []string
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-run" || a == "-bench":
			i++
			if args[i] != "^$" && args[i] != "." {
				patterns = append(patterns, strings.Split(strings.Trim(args[i], "^$"), "|")...)
			}
		case strings.HasPrefix(a, "./"):
			if bad := noPackage(a); bad != "" {
				return bad
			}
			dirs = append(dirs, filepath.Join("..", a))
		case strings.HasPrefix(a, "-") && strings.Contains(a, "."):
			flags = append(flags, strings.TrimPrefix(a, "-"))
		}
	}
	text := ""
	for _, dir := range dirs {
		files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text += string(source)
		}
	}
	for _, p := range patterns {
		if !regexp.MustCompile(`\nfunc (Test|Benchmark|Fuzz|Example)\w*`+p).MatchString(text) &&
			!regexp.MustCompile(`\nfunc `+p).MatchString(text) {
			return "nothing matches " + p
		}
	}
	for _, f := range flags {
		if !strings.Contains(text, `"`+f+`"`) {
			return "no flag -" + f
		}
	}
	return ""
}

// TestDocumentsRefuse: what looks at documents finds what is wrong with them.
func TestDocumentsRefuse(t *testing.T) {
	for block, want := range map[string]int{"a\nc\n": 0, "c\na\n": 1, "d\n": 1} {
		if got := missing(block, "a\nb\nc"); len(got) != want {
			t.Errorf("of %q %q is missing", block, got)
		}
	}
	text := "```\nmake x # why\n```\nsay `go test ./cq`, not `Go`\n```go\ngo run()\n```\n"
	if got := commands(text); !slices.Equal(got, []string{"make x", "go test ./cq"}) {
		t.Errorf("commands are %q", got)
	}
	for args, right := range map[string]bool{
		"./cq -limits.clock -run 'Tmpfs|Cgroup'": true,
		"./cq -run NoSuchTest":                   false,
		"./cq -run 'Tmpfs|NoSuchTest'":           false,
		"./cq -bench NoSuchBenchmark":            false,
		"./cq -no.flag":                          false,
		"./nowhere":                              false,
	} {
		if bad := badTest(t, words(args)); (bad == "") != right {
			t.Errorf("%s: %q", args, bad)
		}
	}
}

// TestExamplesAreRun: each program below examples is one that the tests there start.
func TestExamplesAreRun(t *testing.T) {
	tests, err := os.ReadFile("../examples/examples_linux_test.go")
	if err != nil {
		t.Fatal(err)
	}
	mains, err := filepath.Glob("../examples/*/main.go")
	if err != nil || len(mains) == 0 {
		t.Fatal(mains, err)
	}
	for _, file := range mains {
		name := filepath.Base(filepath.Dir(file))
		if !strings.Contains(string(tests), `start("`+name+`"`) {
			t.Errorf("nothing starts examples/%s", name)
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Error(err)
		} else if !strings.HasPrefix(tree.Doc.Text(), "Command "+name+" ") {
			t.Errorf("examples/%s does not say what it is", name)
		}
	}
}

// build builds a command for the time of a test.
func build(t *testing.T, dir, path string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags=-s -w",
		"-o", dir, path)
	cmd.Dir = root(t)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return filepath.Join(dir, filepath.Base(path))
}
