package command

import (
	"bytes"
	"strings"
	"testing"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/testdata"
)

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{"lss"}, {"show"}, {"ls", "--nope"}, {"ls", "-o", "xml"}, {"show", "x", "-o", "yaml"},
		{"ls", "-w=never"}, {"ls", "-w=-1s"}, {"ls", "-w=0s"}, {"ls", "[a"}, {"version", "x"},
		{"tail"}, {"tail", "a", "b"}, {"tail", "a", "-n", "-1"}, {"tail", "a", "--interval", "0s"},
		{"signal"}, {"post"}, {"post", "a", "--flags", "SENT"}, {"post", "a", "--context", "x"},
		{"post", "a", "--len=-1"}, {"post", "a", "--tag", "y"}, {"post", "a", "--src", "z"},
		{"post", "a", "--error", "ENOPE"}, {"post", "a", "--error-data", "00"},
		{"post", "a", "--error", "EIO", "--error-data", "0"}, {"post", "a", "--count", "0"},
		{"post", "a", "--error", "EIO", "--solicited"}, {"post", "a", "--buf", "70000+1"},
		{"post", "a", "--error", "EIO", "--error-data", strings.Repeat("00", 41)},
		{"post", "a", "--event", "nope"}, {"post", "a", "--fid", "queue:1"},
		{"post", "a", "--event", "USER", "--tag", "1"}, {"post", "a", "--event", "0", "--fid", "x"},
		{"post", "a", "--event", "0", "--payload", "0"},
		{"post", "a", "--event", "0", "--payload", "00", "--error", "EIO"},
		{"bench", "moon"}, {"bench", "--case", "[a"}, {"bench", "--pairs=-1"}, {"bench", "--cpus=1"},
		{"serve"}, {"serve", "--dev", "lo", "--queue", "x"}, {"serve", "--dev", "lo", "--mode", "x"},
		{"serve", "--dev", "lo", "--bind", "x"}, {"serve", "--dev", "lo", "--allow", "root"},
		{"serve", "--dev", "lo", "--frames", "0"}, {"version", "-o", "x"},
		{"gc", "orders"}, {"gc", "-o", "x"}, {"check", "-a", "x"}, {"check", "-o", "x"},
	} {
		r := run(t, args...)
		if r.code != 2 || r.stdout != "" || !strings.HasPrefix(r.stderr, "shmctl: ") ||
			!strings.Contains(r.stderr, "\n  ") || strings.Count(r.stderr, "\n") != 2 {
			t.Errorf("%v: exit %d, stdout %q, stderr %q", args, r.code, r.stdout, r.stderr)
		}
		r = run(t, append(args, "-j")...)
		if p := failure(t, r.stderr); r.code != 2 || p.Code != 2 || p.Hint == "" || r.stdout != "" {
			t.Errorf("%v -j: exit %d, %+v", args, r.code, p)
		}
	}
	if r := run(t, "lss"); !strings.Contains(r.stderr, "Did you mean this? ls") {
		t.Errorf("no suggestion: %s", r.stderr)
	}
}

func TestHelp(t *testing.T) {
	if r := run(t); r.code != 0 || !strings.Contains(r.stdout, "Available Commands") {
		t.Errorf("no arguments: exit %d, %s", r.code, r.stdout)
	}
	for _, c := range newRoot().Commands() {
		if c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		text := ok(t, c.Name(), "--help")
		if !strings.Contains(text, "Examples:\n  shmctl "+c.Name()) {
			t.Errorf("%s has no example:\n%s", c.Name(), text)
		}
		for line := range strings.Lines(text) {
			if len(line) > 101 {
				t.Errorf("%s: help is wider than 100 columns: %s", c.Name(), line)
			}
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if !strings.Contains(ok(t, "completion", shell), "shmctl") {
			t.Errorf("no completion for %s", shell)
		}
	}
}

func TestVersion(t *testing.T) {
	text := ok(t, "version")
	for _, want := range []string{"shmctl", "ABI    0.", "Go     go1.", "kernel "} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
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
