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
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

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
	w, err := cq.AttachEvents(context.Background(), d, os.Getenv(envQueue),
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
	_, err = cq.AdoptEvents(d, os.Getenv(envQueue), cq.EventOptions{
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
	e, err := cq.CreateEvents(d, name, cq.EventOptions{Size: 64, Wait: cq.WaitUnspec,
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
	e, err := cq.AdoptEvents(d, name, cq.EventOptions{})
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
