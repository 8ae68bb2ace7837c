package cq_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// toldWriter is a process with a writer of a queue, which does what it is told to, also to the
// memory of its own lane.
type toldWriter struct {
	*child
	lane int
	next uint64 // where its writer began
}

// startWriter starts one that is told.
func startWriter(t testing.TB, at site, q *cq.Queue, attr *syscall.SysProcAttr) *toldWriter {
	t.Helper()
	return startWriters(t, at, attr, q)
}

// startWriters starts one with a writer of each of several queues, which uses that of the first one
// until it is told to use another.
func startWriters(t testing.TB, at site, attr *syscall.SysProcAttr, qs ...*cq.Queue) *toldWriter {
	t.Helper()
	w := &toldWriter{child: startAt(t, at.writerRole(), at, attr, qs...)}
	w.begin(t)
	for range qs[1:] {
		_ = w.Line(t)
	}
	return w
}

// begin waits until the writer is attached.
func (w *toldWriter) begin(t testing.TB) {
	t.Helper()
	if _, err := fmt.Sscanf(w.Line(t), "lane %d at %d", &w.lane, &w.next); err != nil {
		t.Fatal(err)
	}
}

// do has it carry out a command: "use" goes to a writer by its number, "lane OFFSET", "slot OFFSET"
// and "detail OFFSET" store the value there, and "ring", "flood", "swing" and "pipe" ring so often.
func (w *toldWriter) do(t testing.TB, what string, value uint64) {
	t.Helper()
	w.tell(t, fmt.Sprint(what, " ", value), "done")
}

func (w *toldWriter) tell(t testing.TB, what, answer string) {
	t.Helper()
	shmtest.Got(fmt.Fprintln(w.In, what)).Or(t)
	w.Says(t, answer)
}

// post has it post contexts from one number to before another.
func (w *toldWriter) post(t testing.TB, from, to uint64) {
	t.Helper()
	w.tell(t, fmt.Sprint(from, " ", to), "posted")
}

// publish has it do what a writer does last that dies then: store an entry at an index and its
// tail, and not ring.
func (w *toldWriter) publish(t testing.TB, at, context uint64) {
	t.Helper()
	w.do(t, fmt.Sprint("slot ", at*cq.SlotBytes), context)
	w.do(t, fmt.Sprint("slot ", at*cq.SlotBytes+56), uint64(w.lane)|at<<32)
	w.do(t, "lane 0", at+1)
}

// attachToParent attaches to the queues that the parent named, or gives over a connection, with as
// many writers as it says.
func attachToParent() (ws []*cq.Writer, conn *net.UnixConn) {
	ctx := context.Background()
	if names := os.Getenv(envQueue); names != "" {
		d := shmtest.Needs(shm.OpenDir(""))
		for name := range strings.SplitSeq(names, "/") {
			for range number(envLanes, 1) {
				w := shmtest.Needs(cq.Attach(ctx, cq.Named(d, name), cq.WriterOptions{}))
				ws = append(ws, w)
			}
		}
		return ws, nil
	}
	var o cq.WriterOptions
	conn, others := connToParent()
	if others {
		o = cq.WriterOptions{Trust: cq.CrossUser, Allow: parentOnly}
	}
	for range number(envLanes, 1) {
		w := shmtest.Needs(cq.Attach(ctx, cq.Over(conn), o))
		ws = append(ws, w)
	}
	return ws, conn
}

// parentOnly allows the parent of another user's process.
var parentOnly = &shm.AllowList{UIDs: []int{0}}

// connToParent is the connection to the parent, and whether that is another user.
func connToParent() (c *net.UnixConn, others bool) {
	if os.Getenv("SOCKET") != "" {
		return dialParent(), true
	}
	c = shmtest.Needs(shmtest.Socket(3))
	return c, false
}

// childToldWriter does what the parent tells, line by line.
func childToldWriter() {
	ws, _ := attachToParent()
	for _, w := range ws {
		say("lane %d at %d", w.Lane(), w.Next())
	}
	w, mem := ws[0], (*ownLane)(nil)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var at, value uint64
		if n, _ := fmt.Sscan(in.Text(), &at, &value); n == 2 {
			for ; at < value; at++ {
				need(w.Post(&cq.Entry{Context: at}))
			}
			say("posted")
			continue
		}
		what, rest, _ := strings.Cut(in.Text(), " ")
		n, _ := fmt.Sscan(rest, &at, &value)
		if n == 1 {
			value = at
		}
		switch what {
		case "use":
			w, mem = ws[value], nil
		case "lane", "slot", "detail":
			if mem == nil {
				mem = openOwnLane(w)
			}
			mem.store(what, at, value)
		case "ring", "flood":
			for range value {
				cq.RingLane(w)
			}
		case "swing": // of the tail, with time to fall asleep again
			for i := range value {
				mem.store("lane", 0, 1<<40+i%2)
				cq.RingLane(w)
				time.Sleep(time.Millisecond)
			}
		case "pipe":
			for range value {
				cq.WritePipe(w)
			}
		case "fork":
			say("%s", forks())
			continue
		case "forbidden":
			say("%s", triesForbidden())
			continue
		}
		say("done")
	}
	for _, w := range ws {
		need(w.Close())
	}
}

// ownLane is the lane of this process, which it writes to behind the library's back.
type ownLane struct {
	mem  *os.File
	base int64
	at   map[string]uint64
}

// openOwnLane finds that of a writer by what stands in what is mapped: a lane that has a name was
// mapped before it got that.
func openOwnLane(w *cq.Writer) *ownLane {
	text := shmtest.Needs(os.ReadFile("/proc/self/maps"))
	l := &ownLane{at: map[string]uint64{}}
	l.mem = shmtest.Needs(os.OpenFile("/proc/self/mem", os.O_RDWR, 0))
	page := make([]byte, 4096)
	for line := range strings.Lines(string(text)) {
		var end int64
		if _, err := fmt.Sscanf(line, "%x-%x rw-s", &l.base, &end); err != nil {
			continue
		}
		shmtest.Needs(l.mem.ReadAt(page, l.base))
		h, err := shm.DecodeHeader(page, uint64(end-l.base))
		if err != nil || h.UUID != cq.LaneUUID(w) {
			continue
		}
		for _, s := range h.Sections {
			l.at[map[shm.SectionKind]string{cq.SectLane: "lane", cq.SectSlots: "slot",
				cq.SectErrors: "detail"}[s.Kind]] = s.Offset
		}
		return l
	}
	need(errors.New("no lane"))
	return nil
}

func (l *ownLane) store(section string, at, value uint64) {
	shmtest.Needs(l.mem.WriteAt(binary.LittleEndian.AppendUint64(nil, value),
		l.base+int64(l.at[section]+at)))
}

// toldReader is a process with a reader, which does what it is told to.
type toldReader struct {
	*child
	site
	t    testing.TB
	conn *net.UnixConn // over which a queue without a name gets its writer
}

// startReader starts one, which adopts the queue that is named like the test, or those of envQueue,
// or makes one, and more when it is told to go to them. They have envCount entries a lane.
func startReader(t testing.TB, at site, env ...string) *toldReader {
	t.Helper()
	r := &toldReader{site: at, t: t}
	switch {
	case at.others:
		r.child, r.conn = startOther(t, "told reader", env...)
	case at.memfd:
		r.child, r.conn = startIn(t, "told reader", nil)
	default:
		r.child = startChild(t, "told reader",
			append([]string{envQueue + "=" + queueName(t)}, env...)...)
		r.expect("accept", 0, "") // it has the queue
	}
	return r
}

// attach attaches a writer of this process to the reader. The caller closes it.
func (r *toldReader) attach() *cq.Writer {
	r.t.Helper()
	w := r.join()
	if r.memfd {
		must(r.t, r.conn.Close()) // the writer has its own
	}
	return w
}

// join is attach over a connection that others follow on.
func (r *toldReader) join() *cq.Writer {
	r.t.Helper()
	if !r.memfd {
		w, err := cq.Attach(soon(r.t), cq.Named(openDir(r.t), queueName(r.t)), cq.WriterOptions{})
		must(r.t, err)
		return w
	}
	o := r.writer()
	if r.others {
		o.Allow = bothUsers()
	}
	done := later(func() { r.expect("accept", 0, "") })
	w := shmtest.Got(cq.Attach(soon(r.t), cq.Over(r.conn), o)).Or(r.t)
	done()
	return w
}

// follow has w go on with the reader. The caller closes what comes of it.
func (r *toldReader) follow(w *cq.Writer) *cq.Writer {
	r.t.Helper()
	done := later(func() { r.expect("accept", 0, "") })
	next := shmtest.Got(w.Follow(soon(r.t), r.conn)).Or(r.t)
	done()
	must(r.t, r.conn.Close())
	return next
}

// end kills the reader and waits until the writer knows.
func (r *toldReader) end(w *cq.Writer) {
	r.t.Helper()
	r.Kill()
	select {
	case <-w.ReaderGone():
	case <-time.After(time.Minute):
		r.t.Fatal("no notice")
	}
}

// do has it do something and returns what it says.
func (r *toldReader) do(what string, n int) string {
	r.t.Helper()
	shmtest.Got(fmt.Fprintln(r.In, what, n)).Or(r.t)
	return r.Line(r.t)
}

func (r *toldReader) expect(what string, n int, want string) {
	r.t.Helper()
	if got := r.do(what, n); got != want {
		r.t.Errorf("%s %d: %q, want %q", what, n, got, want)
	}
}

// childToldReader is told to go to a queue, to peek, read, release, head, peeked, accept, detach,
// close and steady, each with a number.
func childToldReader() {
	qs, make, conn := readersOfParent()
	q := qs[0]
	in := bufio.NewReader(os.Stdin)
	for {
		var what string
		var n int
		if _, err := fmt.Fscan(in, &what, &n); err != nil {
			os.Exit(0)
		}
		err, out := error(nil), ""
		switch what {
		case "queue":
			for len(qs) <= n {
				qs = append(qs, make())
			}
			q = qs[n]
		case "accept":
			if conn != nil {
				err = q.Accept(context.Background(), conn)
			}
		case "peek":
			out, err = peekAll(q, n)
		case "read":
			out, err = readAll(q, n)
		case "steady":
			say("reading")
			out, err = readSteadily(q)
		case "release":
			err = q.Release(n)
		case "head":
			cq.StoreHead(q, 1, uint64(n))
		case "peeked":
			cq.StorePeeked(q, 1, uint64(n))
		case "detach":
			err = q.Detach()
		case "close":
			err = q.Close()
		case "forbidden":
			out = triesForbidden()
		}
		if err != nil {
			out = strings.TrimSpace(out + " error: " + err.Error())
		}
		say("%s", out)
	}
}

// readersOfParent adopts the queues that the parent named, or makes one for a writer of the parent.
func readersOfParent() (qs []*cq.Queue, make func() *cq.Queue, conn *net.UnixConn) {
	if names := os.Getenv(envQueue); names != "" {
		d := shmtest.Needs(shm.OpenDir(""))
		for name := range strings.SplitSeq(names, "/") {
			q := shmtest.Needs(cq.Open(cq.Named(d, name), cq.Options{Existing: true}))
			qs = append(qs, q)
		}
		return qs, nil, nil
	}
	o := cq.Options{Size: number(envCount, 8), Overrun: cq.Overrun(number(envLanes, 0))}
	conn, others := connToParent()
	if others {
		o.Trust, o.Allow = cq.CrossUser, parentOnly
	}
	make = func() *cq.Queue {
		q := shmtest.Needs(cq.Create(cq.Unnamed("q"), o))
		return q
	}
	return []*cq.Queue{make()}, make, conn
}

// peekAll hands out up to n entries of one lane, as far as they do not differ in the mark.
func peekAll(q *cq.Queue, n int) (string, error) {
	es, err := q.Peek(n)
	out := make([]string, len(es))
	for i, e := range es {
		out[i] = fmt.Sprint(e.Context)
		if q.Redelivered() {
			out[i] += "!"
		}
	}
	return strings.Join(out, " "), err
}

// readAll reads until n entries came, or nothing does.
func readAll(q *cq.Queue, n int) (string, error) {
	var out []string
	buf := make([]cq.Msg, 3)
	for len(out) < n {
		k, err := sread(q, buf[:min(len(buf), n-len(out))], 30*time.Millisecond)
		if errors.Is(err, cq.ErrTimedOut) {
			break
		}
		if err != nil {
			return strings.Join(out, " "), err
		}
		for _, e := range buf[:k] {
			mark := ""
			if e.Flags&cq.FlagRedelivered != 0 {
				mark = "!"
			}
			out = append(out, fmt.Sprint(e.Context)+mark)
		}
	}
	return strings.Join(out, " "), nil
}

// readSteadily reads what follows each other until the input ends, and says how much that was.
func readSteadily(q *cq.Queue) (string, error) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		untilTold()
		cancel()
	}()
	dst, next := make([]cq.Msg, 4), uint64(0)
	for {
		n, err := cq.ReadContext(ctx, q, dst, cq.ReadOptions{})
		if n == 0 && ctx.Err() != nil {
			return fmt.Sprintf("read %d", next), q.Close()
		}
		need(err)
		for _, m := range dst[:n] {
			if m.Context != next {
				need(fmt.Errorf("entry %d, want %d", m.Context, next))
			}
			next++
		}
	}
}
