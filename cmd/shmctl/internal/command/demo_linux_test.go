package command

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/shmring/shmring/cmd/shmctl/internal/demo"
	"github.com/shmring/shmring/testdata"
)

// TestDemo runs it as far as it goes without privilege.
func TestDemo(t *testing.T) {
	newDir(t)
	args := []string{"demo", "--path", "shm", "-c", "2000"}
	text := ok(t, append(args, "-j")...)
	d := parsed[demo.Report](t, "demo", text)
	if d.Path != "shm" || d.Mode != nil || d.Reason == nil || d.RX.Completed != 2000 ||
		!strings.Contains(text, `"mode":null`) {
		t.Errorf("%s", text)
	}
	text = ok(t, args...)
	if !strings.Contains(text, "device path not taken") ||
		strings.Count(text, "2000 sent, 2000 completed, 0 lost, 0 corrupt, 0 duplicate") != 2 {
		t.Errorf("%s", text)
	}
}

// TestDemoKeys: what is demanded of every demo is printed, and what is printed is described.
func TestDemoKeys(t *testing.T) {
	text, err := json.Marshal(demo.Report{})
	must(t, err)
	printed := map[string]json.RawMessage{}
	must(t, json.Unmarshal(text, &printed))
	direction := map[string]json.RawMessage{}
	must(t, json.Unmarshal(printed["rx"], &direction))
	latency := map[string]json.RawMessage{}
	must(t, json.Unmarshal(direction["latency_ns"], &latency))
	var doc struct {
		Defs map[string]struct {
			Required   []string
			Properties map[string]any
		} `json:"$defs"`
	}
	must(t, json.Unmarshal(testdata.Schema, &doc))
	for def, got := range map[string]map[string]json.RawMessage{"demo": printed,
		"direction": direction, "latency": latency} {
		d := doc.Defs[def]
		if len(d.Required) == 0 {
			t.Errorf("%s: nothing is demanded", def)
		}
		for _, key := range d.Required {
			if got[key] == nil {
				t.Errorf("%s: %q is demanded and not printed", def, key)
			}
		}
		for key := range got {
			if d.Properties[key] == nil {
				t.Errorf("%s: %q is printed and not described", def, key)
			}
		}
	}
	for _, key := range []string{"path", "mode", "kernel", "pids", "rx", "tx", "wakes",
		"wakes_suppressed", "library_syscalls_per_1000"} {
		if !slices.Contains(doc.Defs["demo"].Required, key) {
			t.Errorf("%q is not demanded", key)
		}
	}
}

// TestDemoProgress: a terminal sees how far it is, and nothing of that stays.
func TestDemoProgress(t *testing.T) {
	newDir(t)
	p := newPTY(t, 100, 24)
	var stdout bytes.Buffer
	code := Main(t.Context(), []string{"demo", "--path", "shm", "-c", "20000"},
		strings.NewReader(""), &stdout, p.tty)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, p.text())
	}
	// It is read from the terminal meanwhile.
	eventually(t, "the last line is cleared", func() bool {
		return strings.HasSuffix(p.text(), "\r"+escToLineEnd)
	})
	for _, phase := range []string{"rx [", "tx ["} {
		if !strings.Contains(p.text(), "\r"+phase) {
			t.Errorf("%q is missing in %q", phase, p.text())
		}
	}
	if strings.Contains(p.text(), "\n") || strings.Contains(stdout.String(), "\x1b") {
		t.Errorf("progress stays: %q, %q", p.text(), stdout.String())
	}
}

// TestPhasesAreShown: a direction that is over before it is time to show anything is shown once.
func TestPhasesAreShown(t *testing.T) {
	var b bytes.Buffer
	p := &progress{w: &b, term: terminal{on: true, columns: 80}}
	for _, phase := range []string{"rx", "rx", "tx"} {
		p.phase(phase, 1, 2)
	}
	has(t, b.String(), "\rrx [", "\rtx [")
}
