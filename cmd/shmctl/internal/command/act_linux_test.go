package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cmd/shmctl/internal/bench"
	"github.com/shmring/shmring/cmd/shmctl/internal/demo"
	"github.com/shmring/shmring/cmd/shmctl/internal/hostile"
	"github.com/shmring/shmring/cmd/shmctl/internal/soak"
	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// createQueue makes a queue that the test reads.
func createQueue(t testing.TB, d *shm.Dir, name string, o cq.Options) *cq.Queue {
	t.Helper()
	return shmtest.Have(cq.Create(cq.Named(d, name), o)).In(t)
}

func tailOf(t testing.TB, text string) ctl.Tail {
	t.Helper()
	return parsed[ctl.Tail](t, "tail", text)
}

// TestPostIsRead: what was said on the command line arrives, and tail shows it before and after.
func TestPostIsRead(t *testing.T) {
	d := newDir(t)
	q := createQueue(t, d, "orders", cq.Options{Size: 8})
	text := ok(t, "post", "orders", "--context", "7", "--flags", "recv|FI_TAGGED",
		"--len", "64", "--tag",
		"0x2a", "--data", "0b101", "--src", "3", "--buf", "16+0x1000", "--solicited")
	if text != "orders: posted 1, lane 1, index 0\n" {
		t.Error(text)
	}
	text = ok(t, "post", "orders", "--error", "etrunc", "--context", "8", "--prov-errno=-4",
		"--overrun-bytes", "12", "--error-data", "776879", "--flags", "RECV", "-j")
	valid(t, text)
	has(t, text, `"index":1`)
	ok(t, "post", "orders", "--count", "2")

	entries := tailOf(t, ok(t, "tail", "orders", "-j")).Lanes[1].Entries
	want := []ctl.Entry{
		{Index: 0, State: "waiting", Context: new(uint64(7)), Flags: []string{"TAGGED", "RECV"},
			FlagBits: 0x408, Len: 64, Tag: 42, Data: 5, Src: new(uint64(3)), Solicited: true,
			Buf: &ctl.Place{Region: 16, Offset: 0x1000}},
		{Index: 1, State: "waiting", Context: new(uint64(8)), Flags: []string{"RECV"},
			FlagBits: 0x400, Failure: &ctl.Failure{Errno: 265, Name: new("ETRUNC"),
				Message: "truncation", ProvErrno: -4, OverrunBytes: 12, Data: "776879"}},
		{Index: 2, State: "waiting", Flags: []string{}}, {Index: 3, State: "waiting", Flags: []string{}},
	}
	if diff := cmp.Diff(want, entries); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	dst := make([]cq.Tagged, 4)
	n, err := cq.Read(q, dst)
	if err != nil || n != 1 || dst[0].Context != 7 || dst[0].Tag != 42 || dst[0].Data != 5 ||
		dst[0].Buf != shm.MakeRef(16, 0x1000) || dst[0].Flags != cq.FlagRecv|cq.FlagTagged {
		t.Errorf("%d, %v, %+v", n, err, dst[0])
	}
	var e cq.ErrorEntry
	must(t, q.ReadErr(&e))
	if e.Err != cq.ETrunc || e.Context != 8 || e.ProvErrno != -4 || e.OverrunBytes != 12 {
		t.Errorf("%+v", e)
	}
	es := shmtest.Got(q.Peek(1)).Or(t)
	var states []string
	for _, e := range tailOf(t, ok(t, "tail", "orders", "-c", "3", "-j")).Lanes[1].Entries {
		states = append(states, e.State)
	}
	if !slices.Equal(states, []string{"released", "peeked", "waiting"}) {
		t.Error(states)
	}
	must(t, q.Release(len(es)))
	if text = ok(t, "tail", "orders"); !strings.HasPrefix(text, "LANE") ||
		!strings.Contains(text, "TAGGED|RECV") || !strings.Contains(text,
		"ETRUNC: truncation (provider -4), 12 bytes did not fit, detail 776879") ||
		!strings.Contains(text, "16+0x1000") || !strings.Contains(text, "solicited") {
		t.Errorf("tail:\n%s", text)
	}
	if text = ok(t, "tail", "orders", "-c", "0"); strings.Count(text, "\n") != 1 {
		t.Errorf("tail -c 0:\n%s", text)
	}
}

// TestPostEvent: events by hand, which tail shows as events.
func TestPostEvent(t *testing.T) {
	d := newDir(t)
	e := shmtest.Have(cq.CreateEvents(cq.Named(d, "news"), cq.EventOptions{Size: 8})).In(t)
	ok(t, "post", "news", "--event", "user+7", "--context", "3", "--fid", "queue:0x12:1", "--payload",
		"776879")
	ok(t, "post", "news", "--event", "shutdown", "--error", "ETRUNC", "--error-data", "00")
	text := ok(t, "tail", "news")
	has(t, text, "USER+7", "of queue 0000000000000012.1, payload 776879",
		"ETRUNC: truncation, detail 00")
	es := tailOf(t, ok(t, "tail", "news", "-j")).Lanes[1].Entries
	if len(es) != 2 || es[0].Event == nil || *es[0].Event.Name != "USER+7" ||
		es[0].Event.FID.ID != 0x12 || *es[0].Context != 3 || es[1].Failure == nil {
		t.Errorf("%+v", es)
	}
	ev := cq.Event{Payload: make([]byte, 0, 8)}
	if _, err := e.Read(&ev, 0); err != nil || ev.Event != cq.EventUser+7 || ev.Context != 3 ||
		ev.FID != (cq.FID{Kind: cq.FIDQueue, ID: 0x12, Generation: 1}) || string(ev.Payload) != "why" {
		t.Errorf("%+v, %v", ev, err)
	}
	var failed cq.EventError
	if _, err := e.ReadErr(&failed, 0); err != nil || failed.Err != cq.ETrunc {
		t.Errorf("%+v, %v", failed, err)
	}
	createQueue(t, d, "orders", cq.Options{Size: 4})
	for _, args := range [][]string{{"post", "news"}, {"post", "orders", "--event", "USER"}} {
		if r := run(t, args...); r.code != 1 || !strings.Contains(r.stderr, "--event") {
			t.Errorf("%v: exit %d, %s", args, r.code, r.stderr)
		}
	}
}

func TestPostRefused(t *testing.T) {
	d := newDir(t)
	createQueue(t, d, "small", cq.Options{Size: 4, MaxLanes: 1})
	createQueue(t, d, "lossy", cq.Options{Size: 4, Overrun: cq.OverrunQueue})
	taken := createQueue(t, d, "taken", cq.Options{Size: 4, MaxLanes: 1})
	shmtest.Have(cq.Attach(t.Context(), cq.Named(d, "taken"), cq.WriterOptions{})).In(t)
	leave(t, d, "left", 1)
	news := shmtest.Got(cq.CreateEvents(cq.Named(d, "news"),
		cq.EventOptions{Size: 4, Lifetime: cq.Persistent})).Or(t)
	must(t, news.Detach())
	shmtest.Have(cq.CreateCounter(cq.Named(d, "count"), cq.CounterOptions{})).In(t)
	for _, c := range []struct {
		args, out, hint string
		code            int
	}{
		{"post small --count 6", "posted 4", "its reader is behind: shmctl show small", 1},
		{"post small --wait 20ms", "", "its reader is behind", 1},
		{"post lossy --count 6", "posted 4", "larger one", 1},
		{"post taken", "", "MaxLanes", 1}, {"post nope", "", "shmctl ls lists", 3},
		{"post nope --wait 20ms", "", "shmctl ls lists", 3}, {"post a/b", "", "slash", 2},
		{"post x --dir /nonexistent", "", "first queue", 3},
		{"signal nope", "", "shmctl ls lists", 3}, {"tail nope", "", "shmctl ls lists", 3},
		{"tail x --dir /nonexistent", "", "first queue", 3},
		{"signal left", "", "signal the reader that takes the queue over", 1},
		{"signal news", "", "signal the reader that takes the queue over", 1},
		{"signal count", "", "shmctl show count", 1}, {"tail count", "", "shmctl show count", 1},
		{"post count", "", "of kind counter, not a queue", 1},
	} {
		r := run(t, strings.Fields(c.args)...)
		if r.code != c.code || !strings.Contains(r.stdout, c.out) || (r.stdout == "") != (c.out == "") ||
			!strings.Contains(r.stderr, c.hint) {
			t.Errorf("%s: exit %d, %q, %q", c.args, r.code, r.stdout, r.stderr)
		}
	}
	must(t, taken.Close())
	for _, verb := range []string{"post", "signal"} {
		if r := run(t, verb, "taken"); r.code == 0 || r.stdout != "" {
			t.Errorf("%s to a destroyed queue: exit %d, %q, %q", verb, r.code, r.stdout, r.stderr)
		}
	}
}

func TestPostWaits(t *testing.T) {
	d := newDir(t)
	done := make(chan result, 1)
	go func() { done <- run(t, "post", "later", "--wait", "1m") }()
	q := createQueue(t, d, "later", cq.Options{Size: 4})
	if r := <-done; r.code != 0 {
		t.Errorf("exit %d, %s", r.code, r.stderr)
	}
	if n, err := cq.Read(q, make([]cq.Msg, 4)); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

func TestSignalVerb(t *testing.T) {
	d := newDir(t)
	q := createQueue(t, d, "orders", cq.Options{Size: 4, Spin: -1})
	has(t, ok(t, "signal", "orders"), "nobody waits")
	wait := func() error {
		_, err := cq.ReadContext(context.Background(), q, make([]cq.Msg, 1),
			cq.ReadOptions{Timeout: time.Minute})
		return err
	}
	if err := wait(); err != cq.ErrSignaled {
		t.Error(err)
	}
	got := make(chan error, 1)
	go func() { got <- wait() }()
	eventually(t, "it sleeps", func() bool { return showOne(t, "orders").Bell.Armed })
	text := ok(t, "signal", "orders", "-j")
	valid(t, text)
	if !strings.Contains(text, `"waiting":true`) ||
		!strings.Contains(text, fmt.Sprintf(`"pid":%d`, os.Getpid())) {
		t.Error(text)
	}
	if err := <-got; err != cq.ErrSignaled {
		t.Error(err)
	}
	createQueue(t, d, "never", cq.Options{Size: 4, Wait: cq.WaitNone})
	if r := run(t, "signal", "never"); r.code != 1 || !strings.Contains(r.stderr, "never blocks") {
		t.Errorf("exit %d, %s", r.code, r.stderr)
	}
}

// TestTailFollows: each entry is shown once, also those of a queue that takes the name later.
func TestTailFollows(t *testing.T) {
	d := newDir(t)
	q := createQueue(t, d, "orders", cq.Options{Size: 8})
	ok(t, "post", "orders", "--context", "0x100")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, diag said
	code := make(chan int, 1)
	go func() {
		code <- Main(ctx, []string{"tail", "orders", "-f", "--interval", "2ms"},
			strings.NewReader(""), &out, &diag)
	}()
	seen := func(context string) func() bool {
		return func() bool { return strings.Contains(out.String(), " "+context+" ") }
	}
	eventually(t, "the first", seen("0x100"))
	ok(t, "post", "orders", "--context", "0x101")
	eventually(t, "the second", seen("0x101"))
	must(t, q.Close())
	eventually(t, "it is gone", func() bool { return strings.Contains(diag.String(), "is gone") })
	createQueue(t, d, "orders", cq.Options{Size: 8})
	ok(t, "post", "orders", "--context", "0x102")
	eventually(t, "the successor's", seen("0x102"))
	cancel()
	if c := <-code; c != 0 {
		t.Errorf("exit %d: %s", c, diag.String())
	}
	text := out.String()
	for _, context := range []string{"0x100", "0x101", "0x102"} {
		if strings.Count(text, context) != 1 {
			t.Errorf("%s is not there once:\n%s", context, text)
		}
	}
	if strings.Count(text, "LANE") != 1 {
		t.Errorf("one heading:\n%s", text)
	}
}

// TestTailCountsMissed: a follower that is too slow says how much it did not see.
func TestTailCountsMissed(t *testing.T) {
	d := newDir(t)
	q := createQueue(t, d, "orders", cq.Options{Size: 4})
	ok(t, "post", "orders", "--context", "1")
	m := ctl.NewMonitor(d)
	defer m.Close()
	_, err := m.Entries("orders", 10)
	must(t, err)
	buf := make([]cq.Msg, 8)
	for range 3 {
		_, _ = cq.Read(q, buf)
		ok(t, "post", "orders", "--count", "4")
	}
	got := shmtest.Got(m.Entries("orders", 100)).Or(t)
	if len(got.Lanes) != 1 || len(got.Lanes[0].Entries) != 4 || got.Lanes[0].Missed != 8 {
		t.Errorf("%+v", got)
	}
	if got, err = m.Entries("orders", 100); err != nil || len(got.Lanes) != 0 {
		t.Errorf("nothing new: %+v, %v", got, err)
	}
	lines := tailLines(&ctl.Tail{Lanes: []ctl.LaneTail{{Row: 1, Missed: 8}}},
		&output{noHeader: true}, page{})
	if len(lines) != 1 || !strings.Contains(lines[0], "8 overwritten") {
		t.Errorf("%q", lines)
	}
}

// TestTailDamagedLane shows the other lanes of a queue of which one is damaged, and of that what
// show says.
func TestTailDamagedLane(t *testing.T) {
	d := newDir(t)
	for state, damage := range map[string]func(lane string){
		ctl.StateCorrupt: func(lane string) { must(t, os.Truncate(lane, 4096)) },
		ctl.StateVersion: func(lane string) { scribble(t, lane, 0xc) },
	} {
		name := "of-" + state
		leave(t, d, name, 2)
		damage(filepath.Join(d.Path(), name, "lane-0001"))
		got := tailOf(t, ok(t, "tail", name, "-j"))
		if len(got.Lanes) != 2 || got.Lanes[0].Error != nil || got.Lanes[1].Error == nil ||
			*got.Lanes[1].State != state {
			t.Errorf("%s: %+v", state, got)
		}
		for _, verb := range []string{"tail", "show"} {
			has(t, ok(t, verb, name), " "+state+"\n")
		}
	}
}

func TestNamesComplete(t *testing.T) {
	d := newDir(t)
	leave(t, d, "orders", 0)
	leave(t, d, "fills", 0)
	for _, verb := range []string{"ls", "show", "tail", "post", "signal"} {
		text := run(t, cobra.ShellCompNoDescRequestCmd, verb, "").stdout
		has(t, text, "orders\n", "fills\n")
	}
	text := run(t, cobra.ShellCompNoDescRequestCmd, "tail", "orders", "").stdout
	if strings.Contains(text, "fills") {
		t.Errorf("a second name: %q", text)
	}
	text = run(t, cobra.ShellCompNoDescRequestCmd, "post", "orders", "--flags", "").stdout
	has(t, text, "REMOTE_CQ_DATA")
}

func TestTorture(t *testing.T) {
	shmtest.Long(t)
	newDir(t)
	const usual = "reader,writer,churner,event-writer,counter" // all at once are for longer runs
	text := ok(t, "torture", "--kills", "20", "--seed", "3", "--roles", usual, "-o", "json")
	r := parsed[torture.Report](t, "torture", text)
	if r.Seed != 3 || r.Kills < 20 || r.Read == 0 || !r.Good() {
		t.Errorf("%s", text)
	}
	text = ok(t, "torture", "--duration", "300ms", "--roles", "counter")
	if !says(text, "lost", "0") {
		t.Errorf("%s", text)
	}
}

// TestTortureRoles: without a choice everybody takes part who can, and it is said who cannot.
func TestTortureRoles(t *testing.T) {
	var said strings.Builder
	all := rolesHere(&said, func(name string) error {
		if name == "device" {
			return errors.New("no interface")
		}
		return nil
	})
	if len(all) != len(torture.Roles())-1 || slices.Contains(all, "device") ||
		!slices.Contains(all, "others-writer") ||
		said.String() != "shmctl: torture without device: no interface\n" {
		t.Errorf("%v, %q", all, said.String())
	}
}

func TestHostile(t *testing.T) {
	shmtest.RequireRoot(t, "root", "only root starts processes of other users")
	newDir(t)
	text := ok(t, "torture", "hostile", "--mutations", "1000", "--seed", "3", "--surfaces",
		"event-lane", "-o", "json")
	r := parsed[hostile.Report](t, "hostile", text)
	if r.Seed != 3 || r.Mutations < 1000 || len(r.Surfaces) != 1 || !r.Good() {
		t.Errorf("%s", text)
	}
	file := filepath.Join(t.TempDir(), "hostile.json")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	text = ok(t, "torture", "report", file)
	has(t, text, "\n| attacks that provoked nothing | 0 |\n",
		"\n| event-lane | users |")
	text = ok(t, "torture", "hostile", "--mutations", "1000", "--surfaces", "event-lane")
	if !says(text, "processes ended by a peer", "0") {
		t.Errorf("%s", text)
	}
}

func TestSoak(t *testing.T) {
	shmtest.Long(t)
	newDir(t)
	var text string
	var r soak.Report
	// The first round has the roles that begin slowest, and nobody dies before it has begun: on a
	// machine that is short of time that takes longer.
	for d := time.Second; ; d *= 2 {
		text = ok(t, "torture", "soak", "--duration", d.String(), "--round", d.String(), "--seed", "3",
			"-o", "json")
		r = parsed[soak.Report](t, "soak", text)
		if r.Seed != 3 || r.Rounds == 0 || r.Mutations == 0 && os.Geteuid() == 0 || !r.Good() {
			t.Fatalf("%s", text)
		}
		if r.Kills > 0 && r.Operations > 0 {
			break
		}
		if d > 2*time.Minute {
			t.Fatalf("nobody died, or did anything: %s", text)
		}
	}
	var b strings.Builder
	r.Sheet().Print(&b)
	if !says(b.String(), "lost", "0") {
		t.Error(b.String())
	}
	file := filepath.Join(t.TempDir(), "soak.json")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	has(t, ok(t, "torture", "report", file), "\n| lost | 0 |\n")
	for _, text := range r.Skipped { // a soak without its device half is half of one
		if strings.HasPrefix(text, "torture: ") && strings.Contains(text, "device") {
			shmtest.Require(t, "xdp", errors.New(text))
		}
	}
}

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
	text := shmtest.Got(json.Marshal(demo.Report{})).Or(t)
	printed := map[string]json.RawMessage{}
	must(t, json.Unmarshal(text, &printed))
	direction := map[string]json.RawMessage{}
	must(t, json.Unmarshal(printed["rx"], &direction))
	latency := map[string]json.RawMessage{}
	must(t, json.Unmarshal(direction["latency_ns"], &latency))
	defs := schemaDefs(t)
	for def, got := range map[string]map[string]json.RawMessage{"demo": printed,
		"direction": direction, "latency": latency} {
		d := defs[def]
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
		if !slices.Contains(defs["demo"].Required, key) {
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
	for _, phase := range []string{"rx: ", "tx: "} {
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
		p.phase(phase).line("%s: 1", phase)
	}
	if text := b.String(); strings.Count(text, "\rrx: ") != 1 || strings.Count(text, "\rtx: ") != 1 {
		t.Errorf("shown is %q", text)
	}
}

func TestVerdict(t *testing.T) {
	row := func(unit string, low, high float64) *bench.Row {
		return &bench.Row{Unit: unit, RatioLow: &low, RatioHigh: &high, RivalName: "c"}
	}
	former := func(low, high float64) *bench.Row {
		r := row("Mops/s", low, high)
		r.RivalName = bench.Former
		return r
	}
	for _, c := range []struct {
		row  *bench.Row
		want string
	}{
		{row("Mops/s", 1.2, 1.3), "faster than c"}, {row("ns", 0.7, 0.8), "faster than c"},
		{row("Mops/s", 0.96, 1.3), "as fast as c"}, {row("ns", 0.7, 1.04), "as fast as c"},
		{row("Mops/s", 0.5, 0.9), "slower than c"}, {row("ns", 1.1, 1.4), "slower than c"},
		{row("Mops/s", 0.9, 1.1), "not decided: measure longer"},
		{row("ns", 0.9, 1.2), "not decided: measure longer"},
		{&bench.Row{Note: "no compiler"}, "no compiler"}, {&bench.Row{}, "not measured"},
		{former(0.98, 0.99), "as fast as before"}, {former(0.9, 0.96), "slower than before"},
		{former(0.96, 1.1), "not decided: measure longer"}, {former(1.04, 1.1), "faster than before"},
	} {
		if got := verdict(c.row); got != c.want {
			t.Errorf("%s %v: %q, want %q", c.row.Unit, c.row.RatioLow, got, c.want)
		}
	}
}

// TestBench measures for a moment, to see that the figures come through.
func TestBench(t *testing.T) {
	shmtest.Long(t)
	if runtime.NumCPU() < 2 {
		shmtest.Require(t, "cpus", errors.New("two processors"))
	}
	if runtime.GOOS != "linux" {
		t.Skip("pinning processes needs Linux")
	}
	file := filepath.Join(t.TempDir(), "bench.html")
	text := ok(t, "bench", "tail", "scale", "--pairs", "1", "--round", "1ms", "--case", "[ro]*",
		"--cc", "none", "--report", file)
	if !strings.Contains(text, "P99.99") || !strings.Contains(text, "ours") {
		t.Errorf("table of tails:\n%s", text)
	}
	page, err := os.ReadFile(file)
	if must(t, err); !bytes.Contains(page, []byte("<th>P99.99</th>")) ||
		!bytes.Contains(page, []byte("<h2>scale</h2>")) {
		t.Errorf("report:\n%s", page)
	}
	args := []string{"bench", "wake", "--pairs", "1", "--round", "1ms", "--cc", "none"}
	text = ok(t, args...)
	if !strings.HasPrefix(text, "BENCH") || !strings.Contains(text, "no C compiler") {
		t.Errorf("table:\n%s", text)
	}
	text = ok(t, append(args, "-j")...)
	all := parsed[map[string][]bench.Row](t, "bench", text)
	rows := all["wake"]
	if len(all) != 1 || len(rows) != 2 || rows[0].Ours == nil || rows[0].Rival != nil {
		t.Errorf("%s", text)
	}
}

// TestBenchUnfinished: what was measured before a bench failed, or was interrupted, is shown. Rows
// of scale need no compiler, those of tail do.
func TestBenchUnfinished(t *testing.T) {
	shmtest.Long(t)
	if runtime.NumCPU() < 2 {
		shmtest.Require(t, "cpus", errors.New("two processors"))
	}
	for name, c := range map[string]struct{ compiler, says string }{
		"failed":      {"echo moon >&2; exit 1", "moon"},
		"interrupted": {"echo > \"$0.runs\"; exec sleep 600", "tail: interrupted"},
	} {
		t.Run(name, func(t *testing.T) {
			cc := filepath.Join(t.TempDir(), "cc")
			must(t, os.WriteFile(cc, []byte("#!/bin/sh\n"+c.compiler), 0o755))
			must(t, unix.Mkfifo(cc+".runs", 0o600))
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			if name == "interrupted" {
				go func() {
					_, _ = os.ReadFile(cc + ".runs")
					interrupt()
				}()
			}
			r := runContext(t, ctx, "bench", "scale", "tail", "--pairs", "1", "--round", "1ms",
				"--case", "[ro]*", "--cc", cc)
			if r.code != 1 || strings.Count(r.stdout, "\nscale") != 3 {
				t.Errorf("exit %d\n%s", r.code, r.stdout)
			}
			has(t, r.stderr, c.says)
			if lacks := "canceled"; strings.Contains(r.stderr, lacks) {
				t.Error(r.stderr)
			}
		})
	}
}
