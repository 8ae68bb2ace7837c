package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

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
	// An interrupt is told as other verbs tell it, in the wait for a queue and in that for room.
	ctx, interrupt := context.WithCancelCause(t.Context())
	defer interrupt(nil)
	for _, args := range [][]string{{"never"}, {"later", "--count", "5"}} {
		go func() {
			done <- runContext(t, ctx, append([]string{"post", "--wait", "1m"}, args...)...)
		}()
		if args[0] == "later" {
			eventually(t, "it is full", func() bool { return *showOne(t, "later").Depth == 4 })
			interrupt(errors.New("stopped"))
		}
	}
	for range 2 {
		r := <-done
		if first, _, _ := strings.Cut(r.stderr, "\n"); r.code != 1 ||
			first != "shmctl: post never: stopped" && first != "shmctl: post later: stopped" {
			t.Errorf("exit %d, %s", r.code, r.stderr)
		}
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
