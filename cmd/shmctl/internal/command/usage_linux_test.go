package command

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shmring/shmring/cmd/shmctl/internal/hostile"
	"github.com/shmring/shmring/cmd/shmctl/internal/soak"
	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/stage"
	xstatus "github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/testdata"
)

// TestUsage: what no verb can make sense of is refused in two lines, with where to read on: what
// does not belong is called stray, and the remedy says what was meant.
func TestUsage(t *testing.T) {
	usage := func(line, want string) {
		t.Helper()
		r := refused(t, line, ctl.CodeUsage, want)
		if r.stdout != "" || !strings.HasPrefix(r.stderr, "shmctl: ") ||
			!strings.Contains(r.stderr, "\n  ") || strings.Count(r.stderr, "\n") != 2 {
			t.Errorf("%s: stdout %q, stderr %q", line, r.stdout, r.stderr)
		}
		r = refused(t, line+" -j", ctl.CodeUsage)
		if p := failure(t, r.stderr); p.Code != ctl.CodeUsage || p.Hint == "" || r.stdout != "" {
			t.Errorf("%s -j: %+v", line, p)
		}
	}
	for _, line := range []string{
		"ls --nope", "ls -o xml", "show x -o yaml", "ls -w=never", "ls -w=-1s",
		"ls -w=0s", "ls [a", "tail a b", "tail a -c -1", "tail a --interval 0s",
		"signal", "post", "post a --flags SENT", "post a --context x", "post a --len=-1",
		"post a --tag y", "post a --src z", "post a --error ENOPE", "post a --error-data 00",
		"post a --error EIO --error-data 0", "post a --count 0", "post a --error EIO --solicited",
		"post a --buf 70000+1", "post a --error EIO --error-data " + strings.Repeat("00", 41),
		"post a --event nope", "post a --fid queue:1", "post a --event USER --tag 1",
		"post a --event 0 --fid x", "post a --event 0 --payload 0",
		"post a --event 0 --payload 00 --error EIO", "bench --case [a",
		"bench ring --case moon*", "bench --pairs=-1", "bench --cpus=1",
		"serve", "serve --dev lo --queue x", "serve --dev lo --mode x",
		"serve --dev lo --bind x", "serve --dev lo --allow root",
		"serve --dev lo --frames 0", "version -o x", "ls -w 0s", "show a --watch -1s", "gc -o x",
		"check -a x", "check -o x", "torture hostile --mutations 0", "torture hostile now",
		"torture hostile --surfaces sea", "torture soak --duration 0", "torture soak --round -1s",
		"torture soak now", "torture --duration 0s", "torture --duration -1s", "torture now",
		"torture --kills x", "check --pid 0", "check --pid 1 orders", "check --pid 1 -a",
		"check --pid server", "ls --dir x --all-users", "demo -c 0", "check --pid 1 --all-users",
	} {
		usage(line, "")
	}
	for line, want := range map[string]string{
		"lss":             "did you mean ls? see: shmctl --help",
		"help lss":        "did you mean ls? see: shmctl help --help",
		"porbe":           "did you mean probe? see",
		"top":             "for \"shmctl\"\n  see: shmctl --help",
		"check --all=x":   "it is neither true nor false",
		"check --pid abc": `"--pid" flag: it is no number`,
		"tail a -c 1x":    "it is no number",
		"post a --wait 5": "it has no unit: say 5s",
		"post a --wait x": "it is no time, as 5s",
		"ls -w5":          "it has no unit: say 5s",
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
		"bench moon":      `"moon": there are ring, wake`,
		"capture lo -w x": "the file is named by --write",
		"tail a -n 3":     "-c, --count says how many",
		"ls -w 5":         "it has no unit: say 5s",
	} {
		usage(line, want)
	}
	usage("check --pid "+strings.Repeat("9", 20), "it is too large or too small")
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
		"ls -w200ms a":      "ls -w=200ms a", "ls -Hw5": "ls -Hw=5", "ls -wn": "ls -wn",
		"ls -w orders": "ls -w orders", "ls 200ms -w": "ls 200ms -w", "ls -w": "ls -w",
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

// TestDevMeansOneThing: every verb of devices takes the interface as an argument or by --dev.
func TestDevMeansOneThing(t *testing.T) {
	newDir(t)
	for verb, more := range map[string]string{"serve": "", "probe": "", "xdp": "",
		"capture": "--write -"} {
		named := run(t, strings.Fields(verb+" nosuch0 "+more)...)
		byFlag := run(t, strings.Fields(verb+" --dev nosuch0 "+more)...)
		if named != byFlag || named.code == 0 || named.code == ctl.CodeUsage {
			t.Errorf("%s: %+v and %+v", verb, named, byFlag)
		}
		twice := run(t, strings.Fields(verb+" nosuch1 --dev nosuch0 "+more)...)
		if verb != "xdp" && (twice.code != ctl.CodeUsage || !strings.Contains(twice.stderr, "stray")) {
			t.Errorf("%s: %+v", verb, twice)
		}
	}
}

// TestFailuresHaveRemedies: whatever fails says what to do about it.
func TestFailuresHaveRemedies(t *testing.T) {
	d := newDir(t)
	for _, line := range []string{"show nope", "tail nope", "signal nope", "post nope", "check nope",
		"xdp nope", "capture nope --write -", "probe nosuch0", "serve nosuch0", "ls --dir /proc",
		"gc --persistent-too nope", "ls --dir /nonexistent", "check --pid 4194304",
		"torture report /nonexistent", "show a/b"} {
		r := run(t, strings.Fields(line)...)
		if r.code == 0 || strings.Count(r.stderr, "\n  ") != 1 {
			t.Errorf("%s: exit %d, %s", line, r.code, r.stderr)
		}
	}
	nowhere := filepath.Join(d.Path(), "no", "file")
	o := shmtest.Got(xstatus.Create(d, xstatus.Info{Interface: "eth7"})).Or(t)
	defer o.Close()
	for line, want := range map[string]string{"serve nosuch0": "ip link", "probe nosuch0": "ip link",
		"bench ring --quick --case spsc --before " + nowhere: "shmctl bench --help",
		"capture eth7 --write " + nowhere:                    "--write",
		"torture report " + nowhere:                          "shmctl torture report --help"} {
		if r := run(t, strings.Fields(line)...); r.code != 3 || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: exit %d, %s", line, r.code, r.stderr)
		}
	}
}

// schemaDef is what the schema says of one kind of object.
type schemaDef struct {
	Required   []string
	Properties map[string]any
}

func schemaDefs(t *testing.T) map[string]schemaDef {
	t.Helper()
	var doc struct {
		Defs map[string]schemaDef `json:"$defs"`
	}
	must(t, json.Unmarshal(testdata.Schema, &doc))
	return doc.Defs
}

// TestSchemaKeys compares the keys of the structs with those that the schema demands: an object
// with keys that the schema does not name would pass it.
func TestSchemaKeys(t *testing.T) {
	defs := schemaDefs(t)
	for def, v := range map[string]any{"queue": ctl.Queue{}, "lane": ctl.Lane{},
		"process": ctl.Process{}, "bell": ctl.Bell{}, "rates": ctl.Rates{},
		"problem": ctl.Problem{}, "version": versionInfo{}, "tail": ctl.Tail{},
		"object": ctl.Object{}, "counter": ctl.Counter{}, "counterHandle": ctl.CounterHandle{},
		"addresses": ctl.Addresses{}, "domain": ctl.Domain{}, "fabric": ctl.Fabric{},
		"outbox": ctl.Outbox{}, "fabricLane": ctl.FabricLane{},
		"laneTail": ctl.LaneTail{}, "entry": ctl.Entry{}, "failure": ctl.Failure{},
		"event": ctl.Event{}, "fid": ctl.FID{},
		"endpoint": endpointInfo{}, "queueRef": queueRef{}, "probe": probeResult{},
		"finding": findingResult{}, "capture": captureResult{},
		"post": postResult{}, "signal": signalResult{}, "serve": serveStatus{},
		"serveApp": serveApp{}, "torture": torture.Report{},
		"tortureRole": torture.RoleReport{}, "tortureMachine": stage.Machine{},
		"notice": torture.Notice{}, "duties": torture.Duties{}, "hostile": hostile.Report{},
		"hostileSurface": hostile.Surface{}, "hostileViolations": hostile.Violations{},
		"gc": gcResult{}, "remains": ctl.Remains{},
		"check": ctl.CheckReport{}, "violation": ctl.Finding{}, "invariant": invariant{},
		"soak": soak.Report{}, "soakFaults": soak.Faults{}, "soakRound": soak.Round{}} {
		d := defs[def]
		want := keysOf(t, reflect.TypeOf(v))
		slices.Sort(want)
		got := slices.Sorted(slices.Values(d.Required))
		if !slices.Equal(got, want) {
			t.Errorf("%s: schema requires %v, struct has %v", def, got, want)
		}
		for _, key := range want {
			if d.Properties[key] == nil {
				t.Errorf("%s: schema does not describe %q", def, key)
			}
		}
	}
}

func keysOf(t *testing.T, s reflect.Type) []string {
	var keys []string
	for f := range s.Fields() {
		if f.Anonymous {
			keys = append(keys, keysOf(t, f.Type)...)
			continue
		}
		key := jsonKey(f)
		if f.Tag.Get("json") == "-" || !f.IsExported() {
			continue
		}
		if key == "" || strings.Contains(f.Tag.Get("json"), "omit") {
			t.Errorf("%v.%s: every key is printed, under a name", s, f.Name)
		}
		keys = append(keys, key)
	}
	return keys
}

func TestSchemaRefuses(t *testing.T) {
	s := schema(t)
	for _, text := range []string{`{}`, `{"schema":"shmctl/1"}`, `{"schema":"shmctl/2","queues":[]}`,
		`{"schema":"shmctl/1","queues":[{"name":"a"}]}`, `{"schema":"shmctl/1","error":{"code":0}}`,
		`{"schema":"shmctl/1","bench":{}}`,
		`{"schema":"shmctl/1","tail":{"queue":"a"}}`, `{"schema":"shmctl/1","post":{"queue":"a"}}`,
		`{"schema":"shmctl/1","signal":{}}`, `{"schema":"shmctl/1","torture":{"seed":1}}`,
		`{"schema":"shmctl/1","gc":{"remains":[]}}`, `{"schema":"shmctl/1","check":{}}`} {
		var v any
		must(t, json.Unmarshal([]byte(text), &v))
		if s.Validate(v) == nil {
			t.Errorf("%s passes", text)
		}
	}
}

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name string, lines []string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	// Escapes are written so that an editor shows them.
	got := strings.ReplaceAll(strings.Join(lines, "\n")+"\n", "\x1b", "<ESC>")
	if *update {
		must(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want := shmtest.Got(os.ReadFile(path)).Or(t)
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got), go test -update writes it anew:\n%s", name, d)
	}
}

// samples are queues in every condition that is printed differently.
func samples() []ctl.Queue {
	orders := sample("orders", "alive")
	orders.PerSecond = &ctl.Rates{Posted: 1_204_000, Read: 1_203_456.7, Wakes: 3}
	orders.Posted, orders.Read = new(uint64(123_456_789)), new(uint64(123_456_700))
	full := sample("full", "alive")
	full.Lanes[1].Depth, full.Depth = new(uint64(8)), new(uint64(8))
	full.State, full.Lanes[1].State = new("full"), "full"
	full.SincePosted, full.SinceRead = &ctl.Since{Ns: 1_234_567}, &ctl.Since{Ns: 9e9, More: true}
	dead := sample("dead", "dead")
	dead.Reader.Command, dead.Reader.Alive, dead.State = nil, new(false), new("dead")
	left := sample("left", "released")
	left.State = new("released")
	stopped := sample("stopped", "alive")
	stopped.Reader.Stopped, stopped.State = new(true), new("stopped")
	lost := sample("lost", "alive")
	lost.State = new("overrun")
	lost.Lanes[1].Overrun, lost.Overruns = new(true), new(uint64(1))
	lost.Lanes[1].State = "overrun"
	lane := sample("lane", "alive")
	lane.Lanes[1] = ctl.Lane{Row: 1, State: "corrupt", Error: &ctl.Problem{Code: 1,
		Message: "size is 4096: cut", Hint: new("shmctl gc")}}
	lane.State = new("corrupt")
	broken := ctl.Queue{Name: "bro\tken", Path: "/dev/shm/x/bro\tken", State: new("corrupt"),
		Error: &ctl.Problem{Message: "magic is x, want y: damaged object", Code: 1}}
	return []ctl.Queue{orders, full, dead, left, stopped, lost, lane, broken}
}

func sample(name, life string) ctl.Queue {
	n := func(x uint64) *uint64 { return &x }
	p := ctl.Process{PID: new(4300), PIDNamespace: n(4026531836), Command: new("engine"),
		Alive: new(true), Life: &life}
	w := ctl.Process{PID: new(4211), PIDNamespace: n(4026531836), Command: new("feedd"),
		Alive: new(true), Life: new("alive")}
	made := time.Date(2026, 11, 21, 8, 0, 0, 123, time.UTC)
	none := ctl.Levels{Head: n(0), Peeked: n(0), Tail: n(0), Depth: n(0), Unreleased: n(0),
		HighWater: n(0), Posted: n(0), Read: n(0), Publishes: n(0), Wakes: n(0),
		WakesSuppressed: n(0), Refused: n(0)}
	some := ctl.Levels{Head: n(40), Peeked: n(42), Tail: n(43), Depth: n(3), Unreleased: n(2),
		HighWater: n(7), Posted: n(43), Read: n(40), Publishes: n(20), Wakes: n(4),
		WakesSuppressed: n(16), Refused: n(1)}
	own := ctl.Lane{Own: true, State: "open", Process: p, Generation: n(1), Levels: none,
		Overrun: new(false), Poisoned: new(false), Parked: new(true), Order: new("seq-cst"),
		SizeBytes: n(69632)}
	lane := ctl.Lane{Row: 1, State: "open", Process: w, Generation: n(3), Levels: some,
		Overrun: new(false), Poisoned: new(false), Parked: new(false), Order: new("release"),
		SizeBytes: n(8192)}
	return ctl.Queue{Name: name, Path: "/dev/shm/x/" + name, Kind: new("queue"),
		UUID: new("0001"), ABI: new("0.1"),
		Format: new("tagged"), Capacity: n(8), SlotBytes: n(64), MaxLanes: new(4),
		OverrunPolicy: new("back-pressure"), Lifetime: new("ephemeral"), WaitObject: new("unspec"),
		OrderPaidBy: new("reader"), State: new("open"), About: ctl.About{Generation: n(1),
			CreatedAt: &made, AgeNs: new(int64(83_456_789_012)), SizeBytes: n(77824),
			Owner: new("alice"), UID: new(uint32(1000)), Mode: new("0600")}, Reader: &p,
		Bell:   &ctl.Bell{Armed: true, Direct: true, Seq: 5, Rung: 4, Epoch: 9, ReadyLanes: 1},
		Levels: some, Overruns: n(0), Lanes: []ctl.Lane{own, lane}}
}

func TestTables(t *testing.T) {
	human, raw := &output{}, &output{raw: true, noHeader: true}
	once := sample("orders", "alive")
	golden(t, "ls", listLines([]ctl.Queue{once}, human, page{}))
	golden(t, "ls-watch", listLines(samples(), human, page{}))
	golden(t, "ls-raw", listLines(samples(), raw, page{}))
	golden(t, "ls-colour", listLines(samples(), human, page{style: style{on: true}}))
	all := samples()
	golden(t, "show", showAll(found{queues: []ctl.Queue{all[0], all[6], all[7]}}, human, page{}))
	golden(t, "show-raw-colour", showAll(found{queues: all[:1]}, raw, page{style: style{on: true}}))
	golden(t, "ls-80", listLines(samples(), human, page{columns: 80}))
	golden(t, "ls-60", listLines(samples(), human, page{columns: 60}))
	golden(t, "show-80", showAll(found{queues: all[:1]}, human, page{columns: 80}))
	golden(t, "ls-none", listLines(nil, human, page{}))
	c := ctl.Counter{Handles: []ctl.CounterHandle{{Threshold: new(uint64(0))},
		{Seat: 1, Threshold: new(uint64(5))}, {Seat: 2}}}
	lines := showAll(found{objects: []ctl.Object{{Counter: &c}}}, human, page{})
	has(t, strings.Join(lines, "\n")+"\n", "pid -, sleeps until anything changes\n",
		"pid -, sleeps until 5\n", "pid -\n")
}

func TestScaled(t *testing.T) {
	o := &output{}
	for n, want := range map[uint64]string{0: "0", 99_999: "99999", 100_000: "100k",
		999_499: "999k", 999_500: "1.00M", 1_234_567: "1.23M", 12_345_678: "12.3M",
		1 << 63: "9.22E"} {
		if got := o.number(n); got != want {
			t.Errorf("number %d: %q, want %q", n, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0", 1023: "1023", 1024: "1KiB", 4096: "4KiB",
		1536: "1.5KiB", 77824: "76KiB", 1 << 20: "1MiB", 1<<20 + 1<<18: "1.25MiB",
		1 << 40: "1TiB"} {
		if got := o.bytes(n); got != want {
			t.Errorf("bytes %d: %q, want %q", n, got, want)
		}
	}
	raw := &output{raw: true}
	if raw.number(1<<40) != "1099511627776" || raw.bytes(1<<20) != "1048576" ||
		raw.rate(1234567.8) != "1234568" {
		t.Error("raw numbers are not in full")
	}
}

func TestCut(t *testing.T) {
	const red, plain = escRed, escPlain
	for _, c := range []struct {
		line    string
		columns int
		want    string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"äöüß", 3, "äöü"},
		{red + "abc" + plain, 3, red + "abc" + plain},
		{"a" + red + "bcd" + plain, 3, "a" + red + "bc" + plain},
		{"ab\x1b[3", 5, "ab"}, {"abc", 0, ""},
	} {
		if got := cut(c.line, c.columns); got != c.want {
			t.Errorf("cut(%q, %d) = %q, want %q", c.line, c.columns, got, c.want)
		}
	}
}
