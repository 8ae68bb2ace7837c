package stage

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
)

func TestMain(m *testing.M) {
	if ok, code := Enter(os.Args[1:], tool); ok {
		os.Exit(code)
	}
	shmtest.Main(m)
}

var tool = Tool{"stage-test", play}

// play does what the role says: its script is what it sends.
func play(c *Child) error {
	var text string
	if err := c.Script(&text); err != nil {
		return err
	}
	switch c.Role {
	case "echo": // until nothing more is told
		orders := make(chan string)
		ctx := c.Listen(orders)
		c.Send(text)
		for {
			select {
			case line := <-orders:
				c.Send(line)
			case <-ctx.Done():
				return nil
			}
		}
	case "deaf": // does not end by itself
		c.Send(text)
		time.Sleep(time.Hour) // a wait that nothing could end would be a deadlock to the runtime
	case "loud":
		_, _ = os.Stdout.WriteString("no JSON\n\"" + strings.Repeat("x", 2*maxLine) + "\"\n")
	case "failed":
		return errors.New(text)
	}
	return nil
}

// begin starts a process, and returns what it says; the channel is closed at its end.
func begin(t *testing.T, s Spec) (*Process, chan string) {
	t.Helper()
	said := make(chan string, 16)
	s.Tool, s.Hear = tool.Name, JSON(func(text string) { said <- text })
	s.Ended = func() { close(said) }
	p, err := s.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p, said
}

// TestWaysToEnd: what each end looks like to who started the process.
func TestWaysToEnd(t *testing.T) {
	for _, c := range []struct {
		name   string
		role   string
		end    func(*Process)
		killed bool
		code   int
	}{
		{"dismissed", "echo", (*Process).Dismiss, false, 0},
		{"killed", "echo", (*Process).Kill, true, -1},
		{"ended", "echo", func(p *Process) { End(time.Minute, nil, p) }, false, 0},
		{"ended too late", "deaf", func(p *Process) { End(time.Millisecond, p) }, true, -1},
		{"ended after its end", "deaf", func(p *Process) { p.Kill(); End(0, p) }, true, -1},
		{"asked what it does", "deaf", func(p *Process) { p.Signal(syscall.SIGQUIT) }, false, 2},
		{"failed", "failed", func(*Process) {}, false, 1},
		{"no such role", "", func(*Process) {}, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var diag bytes.Buffer
			p, said := begin(t, Spec{Role: c.role, Script: "hello", Stderr: &diag})
			if c.role == "echo" || c.role == "deaf" {
				if got := <-said; got != "hello" || p.Over() || p.State() != nil || p.Killed() {
					t.Errorf("said %q, state %v", got, p.State())
				}
			}
			c.end(p)
			if !p.Wait(time.Minute) || p.Killed() != c.killed || p.State().ExitCode() != c.code {
				t.Errorf("ended by %v", p.State())
			}
			if told := strings.Contains(diag.String(), "goroutine "); told != (c.code == 2) {
				t.Errorf("on standard error: %s", diag.String())
			}
			for range said { // ends: Ended was called
			}
		})
	}
}

// TestTold: lines come in order, and the last one before the end.
func TestTold(t *testing.T) {
	var namespaces sync.Mutex
	p, said := begin(t, Spec{Role: "echo", Script: "first",
		Within: func(start func() error) error {
			namespaces.Lock()
			defer namespaces.Unlock()
			return start()
		}})
	want := []string{"first", "second", "third"}
	var got []string
	for _, line := range want[1:] {
		got = append(got, <-said)
		shmtest.Must(t, p.Tell(line))
	}
	got = append(got, <-said)
	p.Dismiss()
	if !slices.Equal(got, want) || !p.Wait(time.Minute) {
		t.Errorf("said %q, ended by %v", got, p.State())
	}
	if p.Tell("too late") == nil {
		t.Error("a line was told to a process that is gone")
	}
}

// TestBadLines: what is no JSON is left out, and who says more than we keep is not held up.
func TestBadLines(t *testing.T) {
	p, said := begin(t, Spec{Role: "loud", Script: ""})
	if !p.Wait(time.Minute) || p.State().ExitCode() != 0 {
		t.Errorf("ended by %v", p.State())
	}
	for text := range said {
		t.Errorf("heard %d bytes", len(text))
	}
}

// TestNotOurs: a command line of somebody else is left alone, and what cannot start is an error.
func TestNotOurs(t *testing.T) {
	for _, args := range [][]string{nil, {"ls"}, {verb(tool.Name)}, {verb(tool.Name), "echo"},
		{"__other", "echo", `""`}, {verb(tool.Name), "echo", `""`, "more"}} {
		if handled, _ := Enter(args, tool); handled {
			t.Errorf("%q was taken for a process of ours", args)
		}
	}
	wrong := map[string]Spec{"program": {Program: []string{"/no/such/program"}},
		"script": {Script: func() {}},
		"place":  {Within: func(func() error) error { return errors.New("not there") }}}
	for name, s := range wrong {
		if p, err := s.Start(); err == nil {
			p.Kill()
			t.Errorf("a wrong %s starts", name)
		}
	}
}

// TestSheet: the same facts stand in both forms.
func TestSheet(t *testing.T) {
	var s Sheet
	s.Text("Seed %d.", 7)
	s.Row("kills", 12)
	s.Each("found", []string{"a | b"})
	s.Table("role", "cpu", "counts")
	s.Row("écrivain", 1500*time.Microsecond+time.Nanosecond, "turns 3")
	s.Row("r", time.Minute, "")
	s.Text("And that was it.")
	var people, document strings.Builder
	s.Print(&people)
	s.Markdown(&document)
	want := `Seed 7.

kills  12
found  a | b

role        cpu  counts
écrivain  1.5ms  turns 3
r          1m0s

And that was it.
`
	if people.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", people.String(), want)
	}
	want = `Seed 7.

| | |
|---|---|
| kills | 12 |
| found | a / b |

| role | cpu | counts |
|---|---|---|
| écrivain | 1.5ms | turns 3 |
| r | 1m0s | |

And that was it.
`
	if document.String() != want {
		t.Errorf("document\n%s\nwant\n%s", document.String(), want)
	}
}

// TestLifetime goes on, and by little at a time.
func TestLifetime(t *testing.T) {
	real := time.Now()
	begin := Lifetime()
	for Lifetime()-begin < 5*livedMost {
		time.Sleep(time.Millisecond)
	}
	is := Lifetime() - begin
	if passed := time.Since(real); is > passed+livedMost { // one look may have begun before
		t.Errorf("%v passed, and it is %v", passed, is)
	}
}

// TestTimes: counts lie beside each other, and are of times no more than 1/64 apart.
func TestTimes(t *testing.T) {
	for i := range TimeCounts - 1 {
		end := uint64(timeEnd(i))
		if TimeCount(end-1) != i || TimeCount(end) != i+1 {
			t.Fatalf("count %d ends at %d: %d holds the time before, %d that", i, end,
				TimeCount(end-1), TimeCount(end))
		}
		if i > 0 && (timeEnd(i)-timeEnd(i-1))*64 > max(64, timeEnd(i)) {
			t.Fatalf("count %d: from %v to %v", i, timeEnd(i-1), timeEnd(i))
		}
		if end > 1<<40 {
			return
		}
	}
	t.Errorf("the last count ends at %v", timeEnd(TimeCounts-1))
}
