package cq_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["hostile"] = childHostile }

// hostile is a writer of another user that writes to its own lane what it is told to.
type hostile struct{ *child }

func startHostile(t *testing.T, q *cq.Queue) *hostile {
	t.Helper()
	c := startOther(t, "hostile")
	must(t, q.Accept(soon(t), c.conn))
	must(t, c.conn.Close())
	if got := c.line(t); got != "attached" {
		t.Fatal(got)
	}
	return &hostile{c.child}
}

// do has it carry out a command: "lane OFFSET", "slot OFFSET" and "detail OFFSET" store the value
// there, "post" posts an entry with that context, "ring" and "flood" ring so many times.
func (h *hostile) do(t testing.TB, what string, value uint64) {
	t.Helper()
	_, err := fmt.Fprintln(h.in, what, value)
	must(t, err)
	if got := h.line(t); got != "done" {
		t.Fatal(got)
	}
}

func childHostile() {
	w, err := cq.AttachConn(context.Background(), dialParent(),
		cq.WriterOptions{Trust: cq.CrossUser, Allow: &shm.AllowList{UIDs: []int{0}}})
	need(err)
	mem := openOwnLane()
	say("attached")
	for {
		var what string
		var at, value uint64
		if _, err := fmt.Scan(&what); err != nil {
			return
		}
		switch what {
		case "lane", "slot", "detail":
			_, err = fmt.Scan(&at, &value)
			need(err)
			mem.store(what, at, value)
		default:
			_, err = fmt.Scan(&value)
			need(err)
		}
		switch what {
		case "post":
			need(w.Post(&cq.Entry{Context: value}))
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
		say("done")
	}
}

// ownLane is the lane of this process, which it writes to behind the library's back.
type ownLane struct {
	mem  *os.File
	base int64
	at   map[string]uint64
}

func openOwnLane() *ownLane {
	text, err := os.ReadFile("/proc/self/maps")
	need(err)
	var end int64
	l := &ownLane{at: map[string]uint64{}}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "memfd:shmring:lane") && strings.Contains(line, " rw") {
			_, err = fmt.Sscanf(line, "%x-%x", &l.base, &end)
			need(err)
		}
	}
	l.mem, err = os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	need(err)
	page := make([]byte, 4096)
	_, err = l.mem.ReadAt(page, l.base)
	need(err)
	h, err := shm.DecodeHeader(page, uint64(end-l.base))
	need(err)
	for _, s := range h.Sections {
		l.at[map[shm.SectionKind]string{cq.SectLane: "lane", cq.SectSlots: "slot",
			cq.SectErrors: "detail"}[s.Kind]] = s.Offset
	}
	return l
}

func (l *ownLane) store(section string, at, value uint64) {
	_, err := l.mem.WriteAt(binary.LittleEndian.AppendUint64(nil, value),
		l.base+int64(l.at[section]+at))
	need(err)
}

// TestOthersHostile: whatever another user's writer writes to its lane, it costs that writer its
// lane, with one typed error that names it, and nobody else anything. When the process is gone the
// row is free for another.
func TestOthersHostile(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	for name, spoil := range map[string]func(t *testing.T, h *hostile){
		"tail far ahead":  func(t *testing.T, h *hostile) { h.do(t, "lane 0", 1<<40) },
		"tail a bit more": func(t *testing.T, h *hostile) { h.do(t, "lane 0", 9) },
		"tail back":       func(t *testing.T, h *hostile) { h.do(t, "lane 0", 1<<64-1) },
		"no entry": func(t *testing.T, h *hostile) {
			h.do(t, "slot 56", 0xff)
			h.do(t, "lane 0", 1)
		},
		"overrun": func(t *testing.T, h *hostile) { h.do(t, "lane 264", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			q := anonymousOthers(t, cq.Options{Size: 8, MaxLanes: 2, Spin: -1})
			h, good := startHostile(t, q), startWriterOther(t, q)
			spoil(t, h)
			h.do(t, "ring", 1)
			dst := make([]cq.Context, 4)
			_, err := cq.ReadContext(soon(t), q, dst, cq.ReadOptions{})
			wantErr(t, "read", err, cq.ErrCorrupt)
			if bad := new(cq.LaneError); !errors.As(err, &bad) || bad.PID != h.Process.Pid ||
				bad.Lane != 1 {
				t.Errorf("%v is not about lane 1 of %d", err, h.Process.Pid)
			}
			for i := range uint64(20) {
				good.post(t, i, i+1)
				h.do(t, "lane 0", i*3)
				h.do(t, "ring", 1)
				n, err := cq.ReadContext(soon(t), q, dst, cq.ReadOptions{})
				if n != 1 || err != nil || dst[0].Context != i {
					t.Fatalf("another writer's: %d, %v, %v", n, err, dst)
				}
			}
			if s := q.Stats(); s.GivenUp != 1 || s.Retired != 0 {
				t.Errorf("%+v", s)
			}
			h.kill()
			eventually(t, "the row is free", func() bool {
				_, _ = cq.Read(q, dst)
				return q.Stats().Retired == 1
			})
			w := startWriterOther(t, q)
			w.post(t, 77, 78)
			if n, err := cq.ReadContext(soon(t), q, dst, cq.ReadOptions{}); n != 1 || err != nil ||
				dst[0].Context != 77 {
				t.Errorf("%d, %v, %v", n, err, dst)
			}
		})
	}
}

// TestOthersHostileDetail: the detail of an error entry is bounded, whatever length it claims.
func TestOthersHostileDetail(t *testing.T) {
	q := anonymousOthers(t, cq.Options{Size: 8, Spin: -1})
	h := startHostile(t, q)
	h.do(t, "slot 56", 2) // an error entry
	h.do(t, "detail 16", 1<<50)
	h.do(t, "lane 8", 1<<60) // sol
	h.do(t, "lane 16", 1<<61)
	h.do(t, "lane 256", 1) // the order of publishes
	h.do(t, "lane 0", 1)
	h.do(t, "ring", 1)
	dst := make([]cq.Context, 4)
	_, err := sread(q, dst, short, 3)
	wantErr(t, "read", err, cq.ErrAvail)
	e := cq.ErrorEntry{ErrData: make([]byte, 1<<10)}
	must(t, q.ReadErr(&e))
	if len(e.ErrData) > cq.ErrDataMaxBytes {
		t.Errorf("%d bytes of detail", len(e.ErrData))
	}
}

// TestOthersFlood: a writer that rings without end and posts nothing wakes a sleeping reader a few
// times, whatever that sleeps on.
func TestOthersFlood(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	for name, o := range map[string]cq.Options{"sread": {}, "shared": {Shared: true},
		"set": {}, "descriptor": {Wait: cq.WaitFD}} {
		t.Run(name, func(t *testing.T) {
			o.Size, o.Spin = 8, -1
			q := anonymousOthers(t, o)
			h := startHostile(t, q)
			looks, wait := 0, flooded(t, name, q)
			stop := time.Now().Add(400 * time.Millisecond)
			flood := make(chan struct{})
			go func() {
				defer close(flood)
				for time.Now().Before(stop) {
					h.do(t, "flood", 2000)
					h.do(t, "pipe", 200)
				}
			}()
			for time.Now().Before(stop) {
				wait()
				looks++
			}
			<-flood
			if looks += int(q.Stats().Sleeps); looks > 400 {
				t.Errorf("%d looks", looks)
			}
		})
	}
}

// flooded returns one wait, of at most 50 ms.
func flooded(t *testing.T, how string, q *cq.Queue) func() {
	t.Helper()
	const most = 50 * time.Millisecond
	switch how {
	case "set":
		s := waitSet(t, openDir(t), cq.WaitSetOptions{})
		addTo(t, s, q)
		return func() { _, _ = setWait(s, make([]cq.Waitable, 1), most) }
	case "descriptor":
		return func() {
			if q.TryWait() == nil {
				p := []unix.PollFd{{Fd: int32(waitFD(q)), Events: unix.POLLIN}}
				_, _ = unix.Poll(p, int(most.Milliseconds()))
			}
		}
	}
	return func() { _, _ = sread(q, make([]cq.Context, 1), most) }
}
