package command

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/testdata"
	"github.com/shmring/shmring/xdp/device"
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
	return shmtest.Got(compiled()).Or(t)
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

// parsed returns what stands under a key of a line of JSON that a command printed, after checking
// its form.
func parsed[T any](t testing.TB, key, text string) (v T) {
	t.Helper()
	valid(t, text)
	var all map[string]json.RawMessage
	must(t, json.Unmarshal([]byte(text), &all))
	must(t, json.Unmarshal(all[key], &v))
	return v
}

// queues returns the queues that a command printed, and objects what it printed beside them.
func queues(t testing.TB, text string) []ctl.Queue {
	t.Helper()
	return parsed[[]ctl.Queue](t, "queues", text)
}

func objects(t testing.TB, text string) []ctl.Object {
	t.Helper()
	return parsed[[]ctl.Object](t, "objects", text)
}

// problem is the error object of a command that failed with -j.
type problem struct {
	Op, Name, Message, Hint string
	Code                    int
}

func failure(t testing.TB, text string) problem {
	t.Helper()
	return parsed[problem](t, "error", text)
}

// refused runs a command that must fail with a code and say all that.
func refused(t testing.TB, line string, code int, words ...string) result {
	t.Helper()
	r := run(t, strings.Fields(line)...)
	if r.code != code {
		t.Errorf("%s: exit %d, want %d; %s%s", line, r.code, code, r.stdout, r.stderr)
	}
	has(t, r.stdout+r.stderr, words...)
	return r
}

// has demands that a text has all those words.
func has(t testing.TB, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q is missing in:\n%s", w, text)
		}
	}
}

var must = shmtest.Must

var eventually = shmtest.Eventually

// said is what a command prints, which others look at meanwhile.
type said struct {
	mu    sync.Mutex
	text  bytes.Buffer
	wrote func(text string) // is told of every write; may be nil
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(b)
	if s.wrote != nil {
		s.wrote(s.text.String())
	}
	return len(b), nil
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// lines are those that are there, each but the last with its end.
func (s *said) lines() []string {
	return strings.SplitAfter(strings.TrimSuffix(s.String(), "\n"), "\n")
}

// FuzzCommandLine: whatever words follow the program's name, the verb and its flags are found or
// refused in words. Nothing runs.
func FuzzCommandLine(f *testing.F) {
	for _, line := range []string{"ls -j --dir x", "show --all orders", "bench --", "help post", "-",
		"serve --dev eth0 --allow uid:1,ports=1-2 --interval 1s", "gc -r --persistent-too a",
		"capture eth0 --write - --duration 1h --snap -1", "torture hostile --seed 99999999999999999999",
		"post orders --len 0x10 --count 3", "__complete post ''", "check --watch=maybe", "tail -c="} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		cmd, rest, err := newRoot().Find(strings.Fields(line))
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil && err.Error() == "" {
			t.Errorf("%q is refused without a word", line)
		}
	})
}

// FuzzFlagValues: what the flags of post and serve say is refused in words or is within bounds, and
// what is allowed is what its text says.
func FuzzFlagValues(f *testing.F) {
	f.Add("RECV|MSG", "1+0x40", "EIO", "00ff", "uid:1000,ports=5000-5100,frames=512", "0")
	f.Add("", "65536+1", "-5", "0", "gid:4294967296", "all")
	f.Add("NO_SUCH", "1+281474976710656", "x", "zz", "uid:1,ports=0", "70000")
	f.Add("0x10", "+", "", "", "uid:1,frames=0,", "-1")
	f.Fuzz(func(t *testing.T, flags, ref, fault, detail, allow, queue string) {
		p := post{given: func(string) bool { return false }, flags: flags, buf: ref, fault: fault,
			detail: detail, count: 1}
		switch e, err := p.parse(); {
		case err != nil && err.Error() == "":
			t.Errorf("%+v is refused without a word", p)
		case err == nil && (len(e.ErrData) > cq.ErrDataMaxBytes || fault == "" && detail != "" ||
			e.Context != 0 || e.Flags&cq.FlagNoContext == 0):
			t.Errorf("%+v is %+v", p, e)
		}
		if r, err := parseRef(ref); err == nil && r != 0 {
			if again, err := parseRef(r.String()); err != nil || again != r {
				t.Errorf("%q is %v, and that is %v, %v", ref, r, again, err)
			}
		}
		s := serve{dev: "eth0", queue: queue, allow: []string{allow},
			frames: 1, every: time.Second}
		if err := s.configure(); err != nil {
			if err.Error() == "" {
				t.Errorf("%q and %q are refused without a word", allow, queue)
			}
			return
		}
		for _, a := range s.config.Allow {
			if again, err := device.ParseAllow(a.String()); err != nil || again != a {
				t.Errorf("%q is %v, and that is %v, %v", allow, a, again, err)
			}
		}
	})
}
