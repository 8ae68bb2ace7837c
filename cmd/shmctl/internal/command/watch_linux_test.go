package command

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() {
	roles["reader"] = readerRole
	roles["writer"] = writerRole
}

// readerRole creates the queue and reads until its standard input ends.
func readerRole() {
	d := shmtest.Needs(shm.OpenDir(""))
	q := shmtest.Needs(cq.Create(cq.Named(d, "live"), cq.Options{Size: 64, MaxLanes: 4}))
	fmt.Println("ready")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		cancel()
	}()
	for buf := make([]cq.Context, 16); ctx.Err() == nil; {
		_, _ = cq.ReadContext(ctx, q, buf, cq.ReadOptions{})
	}
	need(q.Close())
}

// writerRole posts as many entries as its standard input says, then waits for the end.
func writerRole() {
	d := shmtest.Needs(shm.OpenDir(""))
	w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, "live"), cq.WriterOptions{}))
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		n := shmtest.Needs(strconv.Atoi(in.Text()))
		for n > 0 {
			if w.Post(&cq.Entry{}) == nil {
				n--
			} else {
				runtime.Gosched()
			}
		}
		fmt.Println("done")
	}
	need(w.Close())
}

// peer is a child process that is spoken to line by line.
type peer struct {
	*shmtest.Proc
	t testing.TB
}

func start(t testing.TB, role string) *peer {
	t.Helper()
	return &peer{shmtest.Start(t, shmtest.Child(t, role)), t}
}

// say sends a line, if there is one, and waits for the answer.
func (p *peer) say(line, answer string) {
	p.t.Helper()
	if line != "" {
		shmtest.Got(fmt.Fprintln(p.In, line)).Or(p.t)
	}
	p.Says(p.t, answer)
}

func showOne(t testing.TB, name string) ctl.Queue {
	t.Helper()
	listed := queues(t, ok(t, "ls", name, "-j"))
	shown := queues(t, ok(t, "show", name, "-j"))
	if len(listed) != 1 || len(shown) != 1 || listed[0].Name != name || shown[0].Name != name {
		t.Fatalf("ls %v, show %v", listed, shown)
	}
	return shown[0]
}

func TestLiveQueue(t *testing.T) {
	newDir(t)
	reader := start(t, "reader")
	reader.say("", "ready")
	writers := []*peer{start(t, "writer"), start(t, "writer")}
	for i, n := range []string{"1000", "234"} {
		writers[i].say(n, "done")
	}
	comm := shmtest.Got(os.ReadFile(fmt.Sprintf("/proc/%d/comm", reader.Process.Pid))).Or(t)
	command := strings.TrimSpace(string(comm))

	var q ctl.Queue
	eventually(t, "all is read and the reader sleeps", func() bool {
		q = showOne(t, "live")
		return *q.Read == 1234 && q.Bell.Armed && q.Bell.Direct
	})
	if *q.Posted != 1234 || *q.Depth != 0 || *q.Head != 1234 || *q.Tail != 1234 ||
		*q.Capacity != 64 || *q.State != "open" || *q.Publishes != 1234 ||
		*q.Wakes+*q.WakesSuppressed < *q.Publishes || *q.HighWater > 64 || *q.AgeNs <= 0 {
		t.Errorf("queue %+v", q)
	}
	if *q.Reader.PID != reader.Process.Pid || *q.Reader.Command != command || !*q.Reader.Alive {
		t.Errorf("reader %+v", q.Reader)
	}
	var posted []uint64
	var pids []int
	for _, l := range q.Lanes[1:] {
		posted, pids = append(posted, *l.Posted), append(pids, *l.PID)
		if *l.Command != command || !*l.Alive || *l.Life != "alive" {
			t.Errorf("lane %+v", l)
		}
	}
	slices.Sort(posted)
	slices.Sort(pids)
	wantPIDs := []int{writers[0].Process.Pid, writers[1].Process.Pid}
	slices.Sort(wantPIDs)
	if !slices.Equal(posted, []uint64{234, 1000}) || !slices.Equal(pids, wantPIDs) {
		t.Errorf("posted %v by %v, want 234 and 1000 by %v", posted, pids, wantPIDs)
	}

	writers[0].Kill()
	for _, l := range showOne(t, "live").Lanes {
		if dead := *l.PID == writers[0].Process.Pid; *l.Alive == dead || (*l.Life == "dead") != dead ||
			(l.Command == nil) != dead {
			t.Errorf("after a writer was killed: lane %+v", l)
		}
	}
	reader.Kill()
	q = showOne(t, "live")
	if *q.Reader.Alive || *q.Reader.Life != "dead" || *q.State != "dead" {
		t.Errorf("after the reader was killed: %+v, %s", q.Reader, *q.State)
	}
	if text := ok(t, "ls"); !strings.Contains(text, "(dead)") || !strings.HasSuffix(text, "  dead\n") {
		t.Errorf("ls:\n%s", text)
	}
	writers[1].Stop(t)
}

// TestStateAgrees: ls, show and JSON give the same word for each object, and an error stands below
// the table.
func TestStateAgrees(t *testing.T) {
	d := newDir(t)
	leave(t, d, "left", 1)
	leave(t, d, "cut", 1)
	leave(t, d, "lane", 1)
	for _, file := range []string{"cut/reader", "lane/lane-0001"} {
		must(t, os.Truncate(filepath.Join(d.Path(), file), 4096))
	}
	createQueue(t, d, "open", cq.Options{Size: 4})
	createQueue(t, d, "full", cq.Options{Size: 4})
	ok(t, "post", "full", "-c", "4")
	shmtest.Have(cq.CreateCounter(cq.Named(d, "count"), cq.CounterOptions{})).In(t)
	damagedCounter(t, d, "sent")
	want := map[string]string{"left": "released", "cut": "corrupt", "lane": "corrupt",
		"open": "open", "full": "full", "count": "open", "sent": "corrupt"}
	text := ok(t, "ls", "-j")
	got := map[string]string{}
	for _, q := range queues(t, text) {
		got[q.Name] = *q.State
	}
	for _, o := range objects(t, text) {
		got[o.Name] = o.State
	}
	for name, state := range want {
		if got[name] != state {
			t.Errorf("%s is %s in JSON, want %s", name, got[name], state)
		}
		if text := run(t, "show", name).stdout; !strings.Contains(text, " "+state+"\n") {
			t.Errorf("show %s, want %s:\n%s", name, state, text)
		}
	}
	table, notes := ok(t, "ls", "-H"), ok(t, "ls")
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) > 0 && f[len(f)-1] != want[f[0]] {
			t.Errorf("ls: %s", line)
		}
	}
	for _, note := range []string{"cut: ", "lane, lane 1: "} {
		if !strings.Contains(notes, "\n"+note) || strings.Contains(table, note) {
			t.Errorf("no note %q:\n%s", note, notes)
		}
	}
}

// pty is a terminal whose output is collected.
type pty struct {
	tty *os.File
	mu  sync.Mutex
	out bytes.Buffer
}

func newPTY(t *testing.T, columns, rows uint16) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		shmtest.Require(t, "pty", err)
	}
	var number int
	conn := shmtest.Got(master.SyscallConn()).Or(t)
	must(t, conn.Control(func(fd uintptr) {
		must(t, unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0))
		number = shmtest.Got(unix.IoctlGetInt(int(fd), unix.TIOCGPTN)).Or(t)
		must(t, unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ,
			&unix.Winsize{Col: columns, Row: rows}))
	}))
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	p := &pty{tty: tty}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			p.mu.Lock()
			p.out.Write(buf[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		must(t, tty.Close())
		<-done // the master ends with an error when the last terminal is closed
		must(t, master.Close())
	})
	return p
}

func (p *pty) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

func TestWatchOnTerminal(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	d := newDir(t)
	shmtest.Have(cq.Create(cq.Named(d, "orders"), cq.Options{Size: 8})).In(t)
	p := newPTY(t, 60, 24)
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() {
		code <- Main(ctx, []string{"ls", "-w", "5ms"}, strings.NewReader(""), p.tty, io.Discard)
	}()
	eventually(t, "three frames with rates", func() bool {
		return strings.Count(p.text(), "IN/s") >= 1 && strings.Count(p.text(), "orders") >= 3
	})
	cancel() // what an interrupt does
	if c := <-code; c != 0 {
		t.Errorf("exit %d", c)
	}
	eventually(t, "the cursor is back", func() bool {
		return strings.HasSuffix(p.text(), escShowCursor)
	})
	text := p.text()
	if strings.Count(text, escHideCursor) != 1 || !strings.HasPrefix(text, escHideCursor) {
		t.Error("the cursor is not hidden exactly once")
	}
	if strings.Contains(text, "\x1b[2J") || strings.Contains(text, "\x1b[H") {
		t.Error("the screen is cleared")
	}
	frames := strings.Count(text, escBelow)
	if ups := strings.Count(text, "\x1b[A"); ups != 2*(frames-1) {
		t.Errorf("%d lines up for %d frames of two lines", ups, frames)
	}
	if !strings.Contains(text, escBold+"NAME") {
		t.Errorf("no colour on a terminal: %q", text)
	}
	for line := range strings.SplitSeq(text, "\r\n") {
		if n := visible(line); n > 60 {
			t.Errorf("%d columns on a terminal of 60: %q", n, line)
		}
	}
}

// visible counts the columns of a line.
func visible(line string) int {
	n, escape := 0, false
	for _, r := range line {
		switch {
		case r == '\x1b':
			escape = true
		case escape:
			escape = r == '[' || r == '?' || r >= '0' && r <= '9'
		case r != '\r':
			n++
		}
	}
	return n
}

func TestColourOnlyWhereWanted(t *testing.T) {
	d := newDir(t)
	leave(t, d, "orders", 1)
	p := newPTY(t, 200, 24)
	for _, c := range []struct {
		noColor, term string
		want          bool
	}{{"", "xterm", true}, {"1", "xterm", false}, {"", "dumb", false}} {
		t.Setenv("NO_COLOR", c.noColor)
		t.Setenv("TERM", c.term)
		before := len(p.text())
		if code := Main(t.Context(), []string{"ls"}, strings.NewReader(""), p.tty, p.tty); code != 0 {
			t.Fatal(code)
		}
		eventually(t, "output", func() bool { return strings.Contains(p.text()[before:], "released") })
		if got := strings.Contains(p.text()[before:], "\x1b["); got != c.want {
			t.Errorf("%+v: colour %v", c, got)
		}
	}
	if text := ok(t, "ls"); strings.Contains(text, "\x1b") {
		t.Errorf("escapes in a pipe: %q", text)
	}
}

func TestWatchInPipe(t *testing.T) {
	d := newDir(t)
	shmtest.Have(cq.Create(cq.Named(d, "orders"), cq.Options{Size: 1024})).In(t)
	w := shmtest.Have(cq.Attach(t.Context(), cq.Named(d, "orders"), cq.WriterOptions{})).In(t)
	watch := func(args ...string) string {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := 0
		out := &said{wrote: func(string) {
			must(t, w.Post(&cq.Entry{}))
			if n++; n == 4 {
				cancel()
			}
		}}
		if code := Main(ctx, args, strings.NewReader(""), out, io.Discard); code != 0 {
			t.Errorf("%v: exit %d", args, code)
		}
		return out.String()
	}
	text := watch("ls", "-w=10ms")
	if strings.Contains(text, "\x1b") || strings.Count(text, "NAME") != 4 ||
		strings.Count(text, "\n\n") != 3 || strings.Count(text, "IN/s") != 3 {
		t.Errorf("blocks:\n%s", text)
	}
	var last ctl.Queue
	n := 0
	for line := range strings.Lines(watch("show", "orders", "-w=10ms", "-j")) {
		q := queues(t, line)
		if len(q) != 1 || (q[0].PerSecond == nil) != (n == 0) {
			t.Fatalf("line %d: %s", n, line)
		}
		last = q[0]
		n++
	}
	// One was posted between two looks, 10 ms or more apart.
	if n != 4 || last.PerSecond.Posted <= 0 || last.PerSecond.Posted > 100 ||
		last.PerSecond.Read != 0 {
		t.Errorf("%d lines, last rates %+v", n, last.PerSecond)
	}
}

// watchSteps watches with these arguments until each step was done, the next at each look. A step
// gets all that was printed and where the last table begins, and says whether it is done.
func watchSteps(t *testing.T, args []string, steps ...func(all, last string) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	step := 0
	out := &said{wrote: func(text string) {
		if step < len(steps) && steps[step](text, text[strings.LastIndex(text, "NAME"):]) {
			step++
		}
		if step == len(steps) {
			cancel()
		}
	}}
	code := Main(ctx, append(args, "-w=2ms"), strings.NewReader(""), out, io.Discard)
	if code != 0 || step < len(steps) {
		t.Errorf("exit %d at step %d:\n%s", code, step, out.String())
	}
}

func TestWatchSeesQueuesComeAndGo(t *testing.T) {
	d := newDir(t)
	leave(t, d, "first", 0)
	var second *cq.Queue
	watchSteps(t, []string{"ls", "first", "second"},
		func(string, string) bool {
			second = shmtest.Got(cq.Create(cq.Named(d, "second"), cq.Options{Size: 8})).Or(t)
			return true
		},
		func(_, last string) bool {
			there := strings.Contains(last, "second ")
			if there {
				must(t, second.Close())
			}
			return there
		},
		func(all, _ string) bool { return strings.HasSuffix(all, "second: gone\n") })
}

// TestWatchLetsGo: a queue that was matched by a pattern and is destroyed is not mapped any longer.
func TestWatchLetsGo(t *testing.T) {
	d := newDir(t)
	q := shmtest.Got(cq.Create(cq.Named(d, "passing"), cq.Options{Size: 8})).Or(t)
	there := func(last string) bool { return strings.Contains(last, "passing") }
	watchSteps(t, []string{"ls", "p*"},
		func(_, last string) bool {
			if there(last) {
				must(t, q.Close())
			}
			return there(last)
		},
		func(_, last string) bool {
			if there(last) {
				return false
			}
			maps := shmtest.Got(os.ReadFile("/proc/self/maps")).Or(t)
			if bytes.Contains(maps, []byte("/passing/")) {
				t.Error("still mapped")
			}
			return true
		})
}

// TestClosedPipe has a reader that has seen enough, as head has.
func TestClosedPipe(t *testing.T) {
	d := newDir(t)
	leave(t, d, "orders", 0)
	for _, args := range [][]string{{"ls"}, {"ls", "-w=1ms"}, {"show", "orders", "-j"},
		{"version"}, {"version", "-j"}} {
		r, w, err := os.Pipe()
		must(t, err)
		must(t, r.Close())
		var stderr bytes.Buffer
		if code := Main(t.Context(), args, strings.NewReader(""), w, &stderr); code != 0 ||
			stderr.Len() != 0 {
			t.Errorf("%v: exit %d, %s", args, code, stderr.String())
		}
		must(t, w.Close())
	}
}

// TestWatchFollowsTheDirectory begins before there is one, and has it go and come back.
func TestWatchFollowsTheDirectory(t *testing.T) {
	path := filepath.Join(newDir(t).Path(), "later")
	t.Setenv(shm.EnvDir, path)
	make := func(queue string) bool {
		leave(t, shmtest.Have(shm.OpenDir(path)).In(t), queue, 0)
		return true
	}
	watchSteps(t, []string{"ls"},
		func(string, string) bool { return make("one") },
		func(_, last string) bool { return strings.Contains(last, "one") && os.RemoveAll(path) == nil },
		func(_, last string) bool { return !strings.Contains(last, "one") && make("two") },
		func(_, last string) bool { return strings.Contains(last, "two") })
}

const envArgs = "SHMCTL_TEST_ARGS"

func init() {
	roles["shmctl"] = func() {
		os.Args = append([]string{"shmctl"}, strings.Fields(os.Getenv(envArgs))...)
		os.Exit(Process())
	}
}

// TestWatchEnds ends a watching process as users do: with an interrupt, and by closing the pipe.
func TestWatchEnds(t *testing.T) {
	d := newDir(t)
	leave(t, d, "orders", 0)
	for name, end := range map[string]func(p *os.Process, out *os.File) error{
		"interrupt": func(p *os.Process, _ *os.File) error { return p.Signal(os.Interrupt) },
		"pipe":      func(_ *os.Process, out *os.File) error { return out.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c := shmtest.Child(t, "shmctl", envArgs+"=ls -w=1ms -H")
			r, w, err := os.Pipe()
			must(t, err)
			defer r.Close()
			c.Stdout = w
			must(t, c.Start())
			must(t, w.Close())
			line, err := bufio.NewReader(r).ReadString('\n')
			if err != nil || !strings.HasPrefix(line, "orders") {
				t.Errorf("%q, %v", line, err)
			}
			must(t, end(c.Process, r))
			if name == "interrupt" {
				go func() { _, _ = r.WriteTo(io.Discard) }()
			}
			if err := c.Wait(); err != nil {
				t.Errorf("%v, want exit 0", err)
			}
		})
	}
}
