package command

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/testdata"
)

// TestUsage: what no verb can make sense of is refused in two lines, with where to read on.
func TestUsage(t *testing.T) {
	for _, line := range []string{
		"lss", "show", "ls --nope", "ls -o xml", "show x -o yaml", "ls -w=never", "ls -w=-1s",
		"ls -w=0s", "ls [a", "version x", "tail", "tail a b", "tail a -c -1", "tail a --interval 0s",
		"signal", "post", "post a --flags SENT", "post a --context x", "post a --len=-1",
		"post a --tag y", "post a --src z", "post a --error ENOPE", "post a --error-data 00",
		"post a --error EIO --error-data 0", "post a --count 0", "post a --error EIO --solicited",
		"post a --buf 70000+1", "post a --error EIO --error-data " + strings.Repeat("00", 41),
		"post a --event nope", "post a --fid queue:1", "post a --event USER --tag 1",
		"post a --event 0 --fid x", "post a --event 0 --payload 0",
		"post a --event 0 --payload 00 --error EIO", "bench moon", "bench --case [a",
		"bench --pairs=-1", "bench --cpus=1", "serve", "serve --dev lo --queue x",
		"serve --dev lo --mode x", "serve --dev lo --bind x", "serve --dev lo --allow root",
		"serve --dev lo --frames 0", "version -o x", "gc orders", "gc -f", "capture lo -w x",
		"tail a -n 3", "ls -w 5", "ls -w 0s", "show a --watch -1s", "gc -o x", "check -a x",
		"check -o x", "torture hostile --mutations 0", "torture hostile now",
		"torture hostile --surfaces sea", "torture soak --duration 0", "torture soak --round -1s",
		"torture soak now", "torture --duration 0s", "torture --duration -1s", "torture now",
		"torture --trust nobody", "check --pid 0", "check --pid 1 orders", "check --pid 1 -a",
		"check --pid server", "ls --dir x --all-users", "check --pid 1 --all-users",
	} {
		r := refused(t, line, ctl.CodeUsage)
		if r.stdout != "" || !strings.HasPrefix(r.stderr, "shmctl: ") ||
			!strings.Contains(r.stderr, "\n  ") || strings.Count(r.stderr, "\n") != 2 {
			t.Errorf("%s: stdout %q, stderr %q", line, r.stdout, r.stderr)
		}
		r = refused(t, line+" -j", ctl.CodeUsage)
		if p := failure(t, r.stderr); p.Code != ctl.CodeUsage || p.Hint == "" || r.stdout != "" {
			t.Errorf("%s -j: %+v", line, p)
		}
	}
	refused(t, "lss", ctl.CodeUsage, "Did you mean this? ls")
}

// verbs calls f with each verb, below others too.
func verbs(f func(c *cobra.Command)) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Name() != "completion" && sub.Name() != "help" {
				f(sub)
				walk(sub)
			}
		}
	}
	walk(newRoot())
}

// TestHelp: each verb has an example, and its help no line that is wider than one of the source, or
// ends behind its words.
func TestHelp(t *testing.T) {
	if r := run(t); r.code != 0 || !strings.Contains(r.stdout, "Available Commands") {
		t.Errorf("no arguments: exit %d, %s", r.code, r.stdout)
	}
	n := 0
	verbs(func(c *cobra.Command) {
		n++
		text := ok(t, append(strings.Fields(verbPath(c)), "--help")...)
		if c.Example != "" || !c.HasParent() || c.Parent().Name() == "shmctl" {
			has(t, text, "Examples:\n  shmctl "+verbPath(c))
		}
		for line := range strings.Lines(text) {
			if len([]rune(line)) > 101 || strings.TrimRight(line, " \t\r\n")+"\n" != line {
				t.Errorf("%s: too wide, or a blank at the end: %q", verbPath(c), line)
			}
		}
	})
	if n < 15 {
		t.Errorf("%d verbs", n)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		has(t, ok(t, "completion", shell), "shmctl")
	}
}

func TestVersion(t *testing.T) {
	text := ok(t, "version")
	if got := ok(t, "--version"); got != text {
		t.Errorf("--version says:\n%s\nversion:\n%s", got, text)
	}
	has(t, text, "shmctl", "ABI    0.", "Go     go1.", "kernel ")
	valid(t, ok(t, "version", "-j"))
	valid(t, ok(t, "version", "--output", "json"))
}

func TestWantsJSON(t *testing.T) {
	for args, want := range map[string]bool{"": false, "ls -j": true, "ls -o json": true,
		"ls -ojson": true, "ls --output=json": true, "ls --json": true, "ls -Hj x": true,
		"tail -fj": true, "ls -wjn": true, "ls -w": false, "ls -H": false, "ls -": false,
		"ls --js": false, "ls -o table": false,
		"show json": false, "show -- -j": false, "ls -o": false} {
		if got := wantsJSON(strings.Fields(args)); got != want {
			t.Errorf("%q: %v", args, got)
		}
	}
}

// TestStray: what does not belong is called stray, and the remedy says what was meant.
func TestStray(t *testing.T) {
	for line, want := range map[string]string{
		"gc orders":       `stray argument "orders": gc takes none`,
		"serve lo eth0":   `stray argument "eth0"`,
		"version x":       `stray argument "x": version takes none`,
		"demo 5":          `stray argument "5": demo takes none`,
		"torture soak 1h": `stray argument "1h": torture soak takes none`,
		"tail a 10":       `stray argument "10": tail takes one NAME`,
		"signal a b":      `stray argument "b"`,
		"post a b":        `stray argument "b"`,
		"probe a b":       `stray argument "b": probe takes one INTERFACE`,
		"tail":            "NAME is missing",
		"show":            "NAME is missing",
		"gc -f":           "-r, --remove removes",
		"capture lo -w x": "the file is named by --write",
		"tail a -n 3":     "-c, --count says how many",
		"ls -w 5":         "missing unit",
	} {
		refused(t, line, ctl.CodeUsage, want)
	}
}

// TestFlagsMeanOneThing: over all verbs, a letter belongs to one name, a name has one letter or
// none, and one type of value.
func TestFlagsMeanOneThing(t *testing.T) {
	type flag struct{ letter, kind, verb string }
	names, letters := map[string]flag{}, map[string]string{}
	kindOf := func(v string) string {
		return strings.TrimLeft(strings.TrimSuffix(v, "64"), "u") // numbers of any size
	}
	look := func(c *cobra.Command) {
		c.InitDefaultHelpFlag()
		c.InitDefaultVersionFlag()
		c.Flags().VisitAll(func(f *pflag.Flag) {
			now := flag{f.Shorthand, kindOf(f.Value.Type()), c.CommandPath()}
			if before, ok := names[f.Name]; ok && (before.letter != now.letter ||
				before.kind != now.kind) {
				t.Errorf("--%s is %+v and %+v", f.Name, before, now)
			}
			names[f.Name] = now
			if name, ok := letters[f.Shorthand]; ok && f.Shorthand != "" && name != f.Name {
				t.Errorf("-%s is --%s, and --%s in %s", f.Shorthand, name, f.Name, c.CommandPath())
			}
			letters[f.Shorthand] = f.Name
		})
	}
	look(newRoot())
	verbs(look)
	for letter, name := range map[string]string{"w": "watch", "n": "numeric", "f": "follow",
		"c": "count", "r": "remove", "o": "output", "j": "json", "H": "no-header"} {
		if letters[letter] != name {
			t.Errorf("-%s is --%s, want --%s", letter, letters[letter], name)
		}
	}
}

// TestJoinInterval: what follows -w and is a time belongs to it, and nothing else does.
func TestJoinInterval(t *testing.T) {
	for line, want := range map[string]string{
		"ls -w 200ms": "ls -w=200ms", "ls -Hw 1s a": "ls -Hw=1s a",
		"show a --watch 2s": "show a --watch=2s",
		"ls -w orders":      "ls -w orders", "ls 200ms -w": "ls 200ms -w", "ls -w": "ls -w",
		"ls -w -- 200ms": "ls -w -- 200ms", "ls -w=1s 2s": "ls -w=1s 2s", "gc -w 1s": "gc -w 1s",
		"ls --dir x -w -1s": "ls --dir x -w=-1s", "tail orders 1s": "tail orders 1s", "-w 1s": "-w 1s",
	} {
		if got := strings.Join(joinInterval(newRoot(), strings.Fields(line)), " "); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

// TestStateWords: each state is explained by ls and known to the schema.
func TestStateWords(t *testing.T) {
	help := ok(t, "ls", "--help")
	for _, word := range ctl.States() {
		if !strings.Contains(help, word) {
			t.Errorf("ls does not explain %s", word)
		}
		if !bytes.Contains(testdata.Schema, []byte(`"`+word+`"`)) {
			t.Errorf("the schema does not know %s", word)
		}
	}
}
