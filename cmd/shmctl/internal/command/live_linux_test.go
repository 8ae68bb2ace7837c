package command

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

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
	d, err := shm.OpenDir("")
	need(err)
	q, err := cq.Create(cq.Named(d, "live"), cq.Options{Size: 64, MaxLanes: 4})
	need(err)
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
	d, err := shm.OpenDir("")
	need(err)
	w, err := cq.Attach(context.Background(), cq.Named(d, "live"), cq.WriterOptions{})
	need(err)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		n, err := strconv.Atoi(in.Text())
		need(err)
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
	t    testing.TB
	pid  int
	in   interface{ Write([]byte) (int, error) }
	out  *bufio.Reader
	kill func()
	quit func()
}

func start(t testing.TB, role string) *peer {
	t.Helper()
	c := shmtest.Child(t, role)
	in, err := c.StdinPipe()
	must(t, err)
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	p := &peer{t: t, pid: c.Process.Pid, in: in, out: bufio.NewReader(out)}
	p.kill = func() { _ = c.Process.Kill(); _ = c.Wait() }
	p.quit = func() { _ = in.Close(); must(t, c.Wait()) }
	return p
}

// say sends a line, if there is one, and waits for the answer.
func (p *peer) say(line, answer string) {
	p.t.Helper()
	if line != "" {
		_, err := p.in.Write([]byte(line + "\n"))
		must(p.t, err)
	}
	got, err := p.out.ReadString('\n')
	if err != nil || got != answer+"\n" {
		p.t.Fatalf("%q, %v, want %q", got, err, answer)
	}
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
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", reader.pid))
	must(t, err)
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
	if *q.Reader.PID != reader.pid || *q.Reader.Command != command || !*q.Reader.Alive {
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
	wantPIDs := []int{writers[0].pid, writers[1].pid}
	slices.Sort(wantPIDs)
	if !slices.Equal(posted, []uint64{234, 1000}) || !slices.Equal(pids, wantPIDs) {
		t.Errorf("posted %v by %v, want 234 and 1000 by %v", posted, pids, wantPIDs)
	}

	writers[0].kill()
	for _, l := range showOne(t, "live").Lanes {
		if dead := *l.PID == writers[0].pid; *l.Alive == dead || (*l.Life == "dead") != dead ||
			(l.Command == nil) != dead {
			t.Errorf("after a writer was killed: lane %+v", l)
		}
	}
	reader.kill()
	q = showOne(t, "live")
	if *q.Reader.Alive || *q.Reader.Life != "dead" || *q.State != "dead" {
		t.Errorf("after the reader was killed: %+v, %s", q.Reader, *q.State)
	}
	if text := ok(t, "ls"); !strings.Contains(text, "(dead)") || !strings.HasSuffix(text, "  dead\n") {
		t.Errorf("ls:\n%s", text)
	}
	writers[1].quit()
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
	count, err := cq.CreateCounter(cq.Named(d, "count"), cq.CounterOptions{})
	must(t, err)
	defer count.Close()
	want := map[string]string{"left": "released", "cut": "corrupt", "lane": "corrupt",
		"open": "open", "full": "full", "count": "open"}
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
