package command

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/testdata"
)

func TestMain(m *testing.M) {
	if handled, code := enter(); handled {
		os.Exit(code)
	}
	shmtest.Main(m, roles)
}

// roles are what the test binary does when it is started as a child. Files that are for some
// systems only add theirs.
var roles = map[string]func(){}

// result is what a command line did.
type result struct {
	code           int
	stdout, stderr string
}

func run(t testing.TB, args ...string) result {
	t.Helper()
	return runContext(t, t.Context(), args...)
}

func runContext(t testing.TB, ctx context.Context, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := Main(ctx, args, strings.NewReader(""), &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// ok runs a command that must succeed in silence.
func ok(t testing.TB, args ...string) string {
	t.Helper()
	r := run(t, args...)
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("shmctl %s: exit %d, %s", strings.Join(args, " "), r.code, r.stderr)
	}
	return r.stdout
}

// compiled is the schema; to compile it takes as long as many commands.
var compiled = sync.OnceValues(func() (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(testdata.Schema))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	const url = "https://github.com/shmring/shmring/schema/shmctl-1.json"
	if err := c.AddResource(url, doc); err != nil {
		return nil, err
	}
	return c.Compile(url)
})

func schema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	s, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// valid checks one line of JSON against the schema.
func valid(t testing.TB, text string) {
	t.Helper()
	if strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n") {
		t.Fatalf("not one line: %q", text)
	}
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := schema(t).Validate(v); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}

// says reports whether a report has a row of that name and value.
func says(report, name, value string) bool {
	for line := range strings.Lines(report) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok && strings.TrimSpace(rest) == value {
			return true
		}
	}
	return false
}

// queues returns what a command with -j printed, after checking its form.
func queues(t testing.TB, text string) []ctl.Queue {
	t.Helper()
	valid(t, text)
	var v struct{ Queues []ctl.Queue }
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v.Queues
}

// objects returns the other objects that a command with -j printed.
func objects(t testing.TB, text string) []ctl.Object {
	t.Helper()
	valid(t, text)
	var v struct{ Objects []ctl.Object }
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v.Objects
}

// problem is the error object of a command that failed with -j.
type problem struct {
	Op, Name, Message, Hint string
	Code                    int
}

func failure(t testing.TB, text string) problem {
	t.Helper()
	valid(t, text)
	var v struct{ Error problem }
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v.Error
}
