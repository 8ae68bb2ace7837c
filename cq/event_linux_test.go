package cq_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestCloseThatFailsLosesNoReport closes an event queue all the time while a registration reports
// to it, which is refused and must not turn the report away.
func TestCloseThatFailsLosesNoReport(t *testing.T) {
	shmtest.Long(t)
	_, e := createEvents(t, cq.EventOptions{Size: 16})
	obj, at := payload(t, nil)
	for range 300 {
		r, err := cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: 8,
			Access: cq.FlagRemoteRead, Events: e})
		must(t, err)
		var read atomic.Bool
		closing := make(chan struct{})
		go func() {
			defer close(closing)
			for !read.Load() {
				wantErr(t, "close", e.Close(), cq.ErrBusy, syscall.EBUSY)
			}
		}()
		_, err = eqSread(e, &cq.Event{}, time.Minute)
		read.Store(true)
		<-closing
		must(t, err)
		must(t, r.Close())
	}
}

func init() {
	maps.Copy(roles, map[string]func(){
		"event-writer": childEventWriter,
		"event-reader": childEventReader,
	})
}

// eventPayload is what the event of an index carries, of all lengths.
func eventPayload(buf []byte, index uint64) []byte {
	buf = buf[:index%uint64(cap(buf)+1)]
	for i := range buf {
		buf[i] = byte(index) + byte(i)
	}
	return buf
}

// childEventWriter writes events that say their lane and their index there, every seventh of them
// as an error event, until it is told to stop.
func childEventWriter() {
	d, err := shm.OpenDir("")
	need(err)
	stop := toldToStop()
	w, err := cq.AttachEvents(context.Background(), cq.Named(d, os.Getenv(envQueue)),
		cq.WriterOptions{Wait: true})
	need(err)
	at := w.Stats().Posted
	say("lane %d at %d", w.Lane(), at)
	lane, buf := uint64(w.Lane()), make([]byte, 0, 100)
	for count := uint64(number(envCount, 1<<40)); at < count && !stop.Load(); at++ {
		for {
			data := eventPayload(buf, at)
			if at%7 == 6 {
				_, err = w.WriteErr(&cq.EventError{Context: lane, Data: at, ErrData: data})
			} else {
				_, err = w.Write(&cq.Event{Context: lane, Data: at, Payload: data})
			}
			if err != cq.ErrFull || stop.Load() {
				break
			}
			time.Sleep(100 * time.Microsecond)
		}
		if errors.Is(err, cq.ErrFull) || errors.Is(err, cq.ErrClosed) {
			break
		}
		need(err)
		if at%100 == 99 {
			time.Sleep(200 * time.Microsecond)
		}
	}
	for !stop.Load() {
		time.Sleep(time.Millisecond)
	}
	say("wrote %d", at)
	need(w.Close())
}

// checkEvent returns what the log of an event is, or 0 if the event is not what its writer wrote.
func checkEvent(ev *cq.Event, err error) uint64 {
	lane, at, data, again := uint64(0), uint64(0), []byte(nil), false
	var bad *cq.EventError
	switch {
	case ev != nil:
		lane, at, data, again = ev.Context, ev.Data, ev.Payload, ev.Redelivered
	case errors.As(err, &bad):
		lane, at, data, again = bad.Context, bad.Data, bad.ErrData, bad.Redelivered
	}
	if string(data) != string(eventPayload(make([]byte, 0, 100), at)) || (at%7 == 6) != (ev == nil) {
		return 0
	}
	r := lane<<48 | at
	if again {
		r |= logAgain
	}
	return r
}

// childEventReader takes the queue over and logs every event from its handler.
func childEventReader() {
	d, err := shm.OpenDir("")
	need(err)
	log, err := os.OpenFile(os.Getenv(envLog), os.O_WRONLY|os.O_APPEND, 0)
	need(err)
	_, err = cq.OpenEvents(cq.Named(d, os.Getenv(envQueue)), cq.EventOptions{Existing: true,
		Handler: func(ev *cq.Event, err error) {
			_, err = log.Write(binary.LittleEndian.AppendUint64(nil, checkEvent(ev, err)))
			need(err)
		}})
	need(err)
	say("reading")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// TestEventProcesses has several processes write while readers are killed and replaced: every event
// comes at least once, in the order of its writer, and again only if it is marked and was the one
// that the dead reader had in its hands.
func TestEventProcesses(t *testing.T) {
	t.Parallel()
	const writers, kills = 3, 5
	d := openDir(t)
	name := queueName(t)
	e, err := cq.CreateEvents(cq.Named(d, name), cq.EventOptions{Size: 64, Wait: cq.WaitUnspec,
		Lifetime: cq.Persistent})
	must(t, err)
	must(t, e.Detach())
	path := filepath.Join(t.TempDir(), "log")
	must(t, os.WriteFile(path, nil, 0o600))
	var children []*child
	for range writers {
		children = append(children, startChild(t, "event-writer", envQueue+"="+name))
	}
	for _, c := range children {
		_ = c.line(t)
	}
	size := func() int64 {
		info, err := os.Stat(path)
		must(t, err)
		return info.Size()
	}
	for range kills {
		before := size()
		r := startChild(t, "event-reader", envQueue+"="+name, envLog+"="+path)
		if got := r.line(t); got != "reading" {
			t.Fatal(got)
		}
		eventually(t, "it reads", func() bool { return size() > before+8*500 })
		r.kill()
	}
	wrote := map[uint64]uint64{}
	for _, c := range children {
		var n uint64
		_, err := fmt.Sscanf(c.stop(t), "wrote %d", &n)
		must(t, err)
		wrote[uint64(len(wrote)+1)] = n
	}
	text, err := os.ReadFile(path)
	must(t, err)
	var records []uint64
	for ; len(text) >= 8; text = text[8:] {
		records = append(records, binary.LittleEndian.Uint64(text))
	}
	records = append(records, restOfEvents(t, d, name)...)
	checkEventLog(t, records, wrote, kills)
}

// restOfEvents reads what the last reader left.
func restOfEvents(t *testing.T, d *shm.Dir, name string) (records []uint64) {
	t.Helper()
	e, err := cq.OpenEvents(cq.Named(d, name), cq.EventOptions{Existing: true})
	must(t, err)
	ev := cq.Event{Payload: make([]byte, 0, 300)}
	bad := cq.EventError{ErrData: make([]byte, 0, 300)}
	for {
		_, err := e.Read(&ev, 0)
		if err == cq.ErrWouldBlock {
			break
		}
		if err == cq.ErrAvail {
			_, err = e.ReadErr(&bad, 0)
			must(t, err)
			records = append(records, checkEvent(nil, &bad))
			continue
		}
		must(t, err)
		records = append(records, checkEvent(&ev, nil))
	}
	must(t, e.Close())
	return records
}

func checkEventLog(t *testing.T, records []uint64, wrote map[uint64]uint64, kills int) {
	t.Helper()
	next, again := map[uint64]uint64{}, 0
	for i, r := range records {
		if r == 0 {
			t.Fatalf("record %d: not what was written", i)
		}
		lane, at, marked := r>>48, r&^(logAgain|0xffff<<48), r&logAgain != 0
		switch {
		case at == next[lane]:
			next[lane]++
		case at == next[lane]-1 && marked:
			again++
		default:
			t.Fatalf("record %d: lane %d, event %d (marked: %v), want %d", i, lane, at, marked,
				next[lane])
		}
	}
	if again > kills {
		t.Errorf("%d events came twice with %d kills", again, kills)
	}
	var sum, want uint64
	for lane, n := range next {
		sum += n
		if lane < 1 || lane > uint64(len(wrote)) {
			t.Errorf("lane %d", lane)
		}
	}
	for _, n := range wrote {
		want += n
	}
	if sum != want {
		t.Errorf("%d events of %d", sum, want)
	}
}

// TestEventWriterDies: what it wrote is read, its lane goes to the next.
func TestEventWriterDies(t *testing.T) {
	t.Parallel()
	d, e := createEvents(t, cq.EventOptions{Size: 64, Spin: -1})
	for round := range uint64(3) {
		count := fmt.Sprint((round + 1) * 10)
		c := startChild(t, "event-writer", envQueue+"="+e.Name(), envCount+"="+count)
		if got, want := c.line(t), fmt.Sprint("lane 1 at ", round*10); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
		ev := cq.Event{Payload: make([]byte, 0, 100)}
		bad := cq.EventError{ErrData: make([]byte, 0, 100)}
		for i := round * 10; i < round*10+10; i++ {
			_, err := eqSread(e, &ev, time.Minute)
			got := checkEvent(&ev, nil)
			if err == cq.ErrAvail {
				_, err = e.ReadErr(&bad, 0)
				got = checkEvent(nil, &bad)
			}
			if err != nil || got != 1<<48|i {
				t.Fatalf("event %d: %v, %#x", i, err, got)
			}
		}
		c.kill()
	}
	w := attachEvents(t, d, e.Name())
	if w.Lane() != 1 {
		t.Errorf("lane %d", w.Lane())
	}
}

// TestFollowEvents: an event queue between users is left and followed alike, with its records.
func TestFollowEvents(t *testing.T) {
	shmtest.Conforms(t)
	o := cq.EventOptions{Size: 8, Trust: cq.CrossUser, Allow: bothUsers(), DataMaxBytes: 100}
	open := func() *cq.EventQueue {
		e, err := cq.CreateEvents(cq.Unnamed("events"), o)
		must(t, err)
		return e
	}
	former, next := open(), open()
	defer next.Close()
	a, b := connect(t, unix.SOCK_STREAM)
	done := make(chan error, 1)
	go func() { done <- former.Accept(soon(t), a) }()
	w, err := cq.AttachEvents(soon(t), cq.Over(b), cq.WriterOptions{Trust: cq.CrossUser})
	must(t, errors.Join(err, <-done))
	for i := range uint64(4) {
		_, err = w.Write(&cq.Event{Event: cq.EventUser, Context: i, Payload: eventBytes(i)})
		must(t, err)
	}
	_, err = w.WriteErr(&cq.EventError{Context: 4, Err: cq.ETrunc, ErrData: eventBytes(4)})
	must(t, err)
	ev := cq.Event{Payload: make([]byte, 0, 100)}
	_, err = former.Read(&ev, 0)
	must(t, err)
	must(t, errors.Join(a.Close(), b.Close()))
	must(t, former.Detach())
	<-w.ReaderGone()
	_, err = w.Write(&cq.Event{Event: cq.EventUser})
	wantErr(t, "write", err, cq.ErrPeerGone)

	a, b = connect(t, unix.SOCK_STREAM)
	go func() { done <- next.Accept(soon(t), a) }()
	w2, err := w.Follow(soon(t), b)
	must(t, errors.Join(err, <-done))
	defer w2.Close()
	_, err = w.Write(&cq.Event{Event: cq.EventUser})
	wantErr(t, "write to the former", err, cq.ErrClosed)
	_, err = w2.Write(&cq.Event{Event: cq.EventUser, Context: 5, Payload: eventBytes(5)})
	must(t, err)
	for _, i := range []uint64{1, 2, 3, 4, 5} {
		if i == 4 {
			bad := cq.EventError{ErrData: make([]byte, 0, 100)}
			_, err := next.ReadErr(&bad, 0)
			if err != nil || bad.Context != i || string(bad.ErrData) != string(eventBytes(i)) {
				t.Errorf("%v, %+v", err, bad)
			}
			continue
		}
		_, err := next.Read(&ev, 0)
		if err != nil || ev.Context != i || string(ev.Payload) != string(eventBytes(i)) {
			t.Errorf("%d: %v, %+v", i, err, ev)
		}
	}
}

func eventBytes(i uint64) []byte {
	b := make([]byte, 60+10*int(i)%40)
	for k := range b {
		b[k] = byte(i) + byte(k)
	}
	return b
}

// TestFollowTells: who follows hears of both readers through the event queue that it was bound to.
func TestFollowTells(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eq, err := cq.CreateEvents(cq.Unnamed("deaths"), cq.EventOptions{})
	must(t, err)
	defer eq.Close()
	first := startReader(t, othersSite)
	w := first.attach()
	must(t, w.BindEvents(eq))
	post(t, w, 0, 3)
	first.expect("read", 1, "0")
	former := w.Stats().Reader
	first.end(w)
	second := startReader(t, othersSite)
	next := second.follow(w)
	want := []struct {
		kind        cq.EventKind
		pid         int
		generation  uint64
		first, last uint64
	}{
		{cq.EventPeerDeath, first.Process.Pid, former, 1, 3},
		{cq.EventPeerNew, second.Process.Pid, next.Stats().Reader, 0, 2},
		{cq.EventPeerDeath, second.Process.Pid, next.Stats().Reader, 2, 2},
	}
	for i, tt := range want {
		if i == 2 {
			second.expect("read", 2, "1 2")
			second.end(next)
		}
		ev := cq.Event{Payload: make([]byte, 0, 128)}
		_, err := eq.ReadContext(soon(t), &ev, cq.ReadOptions{})
		must(t, err)
		p, err := cq.ParsePeerEntry(ev.Payload)
		must(t, err)
		if ev.Event != tt.kind || p.PID != tt.pid || p.Generation != tt.generation ||
			p.Role != cq.PeerReader || p.First != tt.first || p.End != tt.last {
			t.Errorf("event %d: %v %+v, want %+v", i, ev.Event, p, tt)
		}
	}
	must(t, next.Close())
}
