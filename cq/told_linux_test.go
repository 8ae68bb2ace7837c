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

func init() { roles["told writer"] = childToldWriter }

// The sites of tests that have their writers in other processes.
var (
	namedSite  = site{far: true}
	memfdSite  = site{far: true, memfd: true}
	othersSite = site{far: true, memfd: true, others: true}
)

// toldWriter is a process with a writer of a queue, which does what it is told to, also to the
// memory of its own lane.
type toldWriter struct {
	*child
	lane int
	next uint64 // where its writer began
}

// ownPIDs has a process run in a PID namespace of its own, where its death gives no notice.
func ownPIDs(t testing.TB) *syscall.SysProcAttr {
	t.Helper()
	if os.Geteuid() != 0 {
		shmtest.Require(t, "pidns", errors.New("a PID namespace needs root"))
	}
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
}

// startAt starts a process in a role that calls attachToParent. The writer of a queue for others is
// another user's.
func startAt(t testing.TB, role string, at site, q *cq.Queue, attr *syscall.SysProcAttr) *child {
	t.Helper()
	switch {
	case at.others:
		c := startOther(t, role)
		must(t, q.Accept(soon(t), c.conn))
		must(t, c.conn.Close())
		return c.child
	case at.memfd:
		c, conn := startIn(t, role, attr)
		must(t, q.Accept(soon(t), conn))
		return c
	}
	cmd := shmtest.Child(t, role, envQueue+"="+q.Name(), "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = attr
	return start(t, cmd)
}

// startWriter starts one that is told.
func startWriter(t testing.TB, at site, q *cq.Queue, attr *syscall.SysProcAttr) *toldWriter {
	t.Helper()
	w := &toldWriter{child: startAt(t, "told writer", at, q, attr)}
	w.begin(t)
	return w
}

// begin waits until the writer is attached.
func (w *toldWriter) begin(t testing.TB) {
	t.Helper()
	if _, err := fmt.Sscanf(w.line(t), "lane %d at %d", &w.lane, &w.next); err != nil {
		t.Fatal(err)
	}
}

// do has it carry out a command: "lane OFFSET", "slot OFFSET" and "detail OFFSET" store the value
// there, "ring", "flood", "swing" and "pipe" ring so many times.
func (w *toldWriter) do(t testing.TB, what string, value uint64) {
	t.Helper()
	_, err := fmt.Fprintln(w.in, what, value)
	must(t, err)
	if got := w.line(t); got != "done" {
		t.Fatal(got)
	}
}

// post has it post contexts from one number to before another.
func (w *toldWriter) post(t testing.TB, from, to uint64) {
	t.Helper()
	w.do(t, fmt.Sprint("post ", from), to)
}

// publish has it do what a writer does last that dies then: store an entry at an index and its
// tail, and not ring.
func (w *toldWriter) publish(t testing.TB, at, context uint64) {
	t.Helper()
	w.do(t, fmt.Sprint("slot ", at*cq.SlotBytes), context)
	w.do(t, fmt.Sprint("slot ", at*cq.SlotBytes+56), uint64(w.lane)|at<<32)
	w.do(t, "lane 0", at+1)
}

// attachToParent attaches to the queue that the parent named, or gives over a connection.
func attachToParent() (w *cq.Writer) {
	if name := os.Getenv(envQueue); name != "" {
		d, err := shm.OpenDir("")
		need(err)
		w, err = cq.Attach(context.Background(), cq.Named(d, name), cq.WriterOptions{})
		need(err)
		return w
	}
	var o cq.WriterOptions
	var c *net.UnixConn
	var err error
	if os.Getenv("SOCKET") != "" {
		c = dialParent()
		o = cq.WriterOptions{Trust: cq.CrossUser, Allow: &shm.AllowList{UIDs: []int{0}}}
	} else {
		c, err = socket(3)
		need(err)
	}
	w, err = cq.Attach(context.Background(), cq.Over(c), o)
	need(err)
	return w
}

func childToldWriter() {
	obeys(attachToParent())
}

// obeys does what the parent tells, line by line.
func obeys(w *cq.Writer) {
	say("lane %d at %d", w.Lane(), w.Next())
	var mem *ownLane
	for in := bufio.NewScanner(os.Stdin); in.Scan(); say("done") {
		what, rest, _ := strings.Cut(in.Text(), " ")
		var at, value uint64
		n, _ := fmt.Sscan(rest, &at, &value)
		if n == 1 {
			value = at
		}
		switch what {
		case "lane", "slot", "detail":
			if mem == nil {
				mem = openOwnLane()
			}
			mem.store(what, at, value)
		case "post":
			for ; at < value; at++ {
				need(w.Post(&cq.Entry{Context: at}))
			}
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
		}
	}
	need(w.Close())
}

// ownLane is the lane of this process, which it writes to behind the library's back.
type ownLane struct {
	mem  *os.File
	base int64
	at   map[string]uint64
}

// openOwnLane finds it by what stands in what is mapped: a lane that has a name was mapped before
// it got that.
func openOwnLane() *ownLane {
	text, err := os.ReadFile("/proc/self/maps")
	need(err)
	l := &ownLane{at: map[string]uint64{}}
	l.mem, err = os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	need(err)
	page := make([]byte, 4096)
	for line := range strings.Lines(string(text)) {
		var end int64
		if _, err := fmt.Sscanf(line, "%x-%x rw-s", &l.base, &end); err != nil {
			continue
		}
		_, err = l.mem.ReadAt(page, l.base)
		need(err)
		h, err := shm.DecodeHeader(page, uint64(end-l.base))
		if err != nil {
			continue
		}
		for _, s := range h.Sections {
			l.at[map[shm.SectionKind]string{cq.SectLane: "lane", cq.SectSlots: "slot",
				cq.SectErrors: "detail"}[s.Kind]] = s.Offset
		}
		if _, ok := l.at["lane"]; ok {
			return l
		}
	}
	need(errors.New("no lane"))
	return nil
}

func (l *ownLane) store(section string, at, value uint64) {
	_, err := l.mem.WriteAt(binary.LittleEndian.AppendUint64(nil, value),
		l.base+int64(l.at[section]+at))
	need(err)
}
