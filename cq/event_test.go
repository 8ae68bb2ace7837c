package cq_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// createEvents makes an event queue named after the test and closes it when the test ends.
func createEvents(t testing.TB, o cq.EventOptions) (*shm.Dir, *cq.EventQueue) {
	t.Helper()
	d := openDir(t)
	e, err := cq.CreateEvents(d, queueName(t), o)
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	return d, e
}

func attachEvents(t testing.TB, d *shm.Dir, name string) *cq.EventWriter {
	t.Helper()
	w, err := cq.AttachEvents(t.Context(), d, name, cq.WriterOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, w.Close()) })
	return w
}

// eventWriter is what an EventQueue and an EventWriter have in common.
type eventWriter interface {
	Write(*cq.Event) (int, error)
	WriteErr(*cq.EventError) (int, error)
}

// writeEvents writes events with contexts from to to-1.
func writeEvents(t testing.TB, w eventWriter, from, to uint64) {
	t.Helper()
	for i := from; i < to; i++ {
		n, err := w.Write(&cq.Event{Event: cq.EventUser, Context: i})
		if n != cq.EventHeaderBytes || err != nil {
			t.Fatalf("write %d: %d, %v", i, n, err)
		}
	}
}

// drainEvents reads until there is nothing more and returns the contexts.
func drainEvents(t testing.TB, e *cq.EventQueue) []uint64 {
	t.Helper()
	var out []uint64
	ev := cq.Event{Payload: make([]byte, 0, e.Options().DataMaxBytes)}
	for {
		switch _, err := e.Read(&ev, 0); err {
		case nil:
			out = append(out, ev.Context)
		case cq.ErrWouldBlock:
			return out
		default:
			t.Fatal(err)
		}
	}
}

func fabric(i uint64) cq.FID { return cq.FID{Kind: cq.FIDFabric, ID: i, Generation: 1} }

// TestEventSizes is T4: every size opens and closes, and holds that many events (P29).
func TestEventSizes(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	for size := 1; size <= 65536; size *= 2 {
		e, err := cq.CreateEvents(d, "sizes", cq.EventOptions{Size: size, DataMaxBytes: 1, Write: true})
		must(t, err)
		if got := e.Options().Size; got != size {
			t.Errorf("size %d for %d", got, size)
		}
		writeEvents(t, e, 0, uint64(size))
		n, err := e.Write(&cq.Event{})
		wantErr(t, "write to a full queue", err, cq.ErrFull, syscall.EAGAIN)
		if n != 0 {
			t.Error(n)
		}
		must(t, e.Close())
	}
}

// TestEventWriteSelf is T5: what is written comes back in order, each event twice when it is
// peeked at first.
func TestEventWriteSelf(t *testing.T) {
	_, e := createEvents(t, cq.EventOptions{Size: 32, Write: true, Wait: cq.WaitNone})
	fids := []cq.FID{e.FID(), fabric(7)}
	if fids[0].Kind != cq.FIDEvents || fids[0].ID == 0 {
		t.Errorf("%v", fids[0])
	}
	for i := range uint64(5) {
		n, err := e.Write(&cq.Event{Event: cq.EventNotify, FID: fids[i%2], Context: i, Data: ^i})
		if n != cq.EventHeaderBytes || err != nil {
			t.Fatal(n, err)
		}
	}
	for i := range uint64(10) {
		flags := cq.Flags(0)
		if i%2 == 0 {
			flags = cq.FlagPeek
		}
		var ev cq.Event
		n, err := e.Read(&ev, flags)
		if n != cq.EventHeaderBytes || err != nil {
			t.Fatal(n, err)
		}
		if ev.Event != cq.EventNotify || ev.Context != i/2 || ev.FID != fids[i/2%2] ||
			ev.Data != ^(i/2) || len(ev.Payload) != 0 || ev.Redelivered {
			t.Errorf("read %d: %+v", i, ev)
		}
	}
	for _, flags := range []cq.Flags{0, cq.FlagPeek} {
		n, err := e.Read(&cq.Event{}, flags)
		wantErr(t, "empty", err, cq.ErrWouldBlock, syscall.EAGAIN)
		if n != 0 {
			t.Error(n)
		}
	}
}

// TestEventCapacity is T6, and that an attached writer has as much room of its own.
func TestEventCapacity(t *testing.T) {
	d, e := createEvents(t, cq.EventOptions{Size: 32, Write: true})
	w := attachEvents(t, d, e.Name())
	writeEvents(t, e, 0, 32)
	writeEvents(t, w, 100, 132)
	got := drainEvents(t, e)
	slices.Sort(got)
	if want := append(upTo(0, 32), upTo(100, 132)...); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// TestEventPeek is T8: peeking changes nothing about the head.
func TestEventPeek(t *testing.T) {
	d, e := createEvents(t, cq.EventOptions{Write: true, Wait: cq.WaitNone})
	writeEvents(t, e, 0, 5)
	var ev cq.Event
	for range 5 {
		if _, err := e.Read(&ev, cq.FlagPeek); err != nil || ev.Context != 0 {
			t.Fatal(ev, err)
		}
	}
	// What arrives in another lane, even one that would have its turn, does not come first.
	w := attachEvents(t, d, e.Name())
	writeEvents(t, w, 100, 300)
	for range 3 {
		if _, err := e.Read(&ev, cq.FlagPeek); err != nil || ev.Context != 0 {
			t.Fatal(ev, err)
		}
	}
	for i := range uint64(200) {
		var want cq.Event
		if _, err := e.Read(&want, cq.FlagPeek); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Read(&ev, 0); err != nil || ev.Context != want.Context || i == 0 &&
			ev.Context != 0 {
			t.Fatal(ev, want, err)
		}
	}
}

// TestEventPayload has payloads of every length around the bound.
func TestEventPayload(t *testing.T) {
	d, e := createEvents(t, cq.EventOptions{Size: 4, DataMaxBytes: 100, Write: true})
	most := e.Options().DataMaxBytes
	if most != 104 {
		t.Errorf("at most %d bytes for 100", most)
	}
	w := attachEvents(t, d, e.Name())
	text := make([]byte, most+1)
	for i := range text {
		text[i] = byte(i + 1)
	}
	ev := cq.Event{Payload: make([]byte, 0, most)}
	for n := range most + 1 {
		for _, by := range []eventWriter{e, w} {
			k, err := by.Write(&cq.Event{Event: cq.EventUser, Payload: text[:n]})
			if k != cq.EventHeaderBytes+n || err != nil {
				t.Fatal(k, err)
			}
			k, err = e.Read(&ev, 0)
			if k != cq.EventHeaderBytes+n || err != nil || string(ev.Payload) != string(text[:n]) {
				t.Fatalf("%d bytes: %d, %v, %x", n, k, err, ev.Payload)
			}
		}
	}
	for _, by := range []eventWriter{e, w} {
		_, err := by.Write(&cq.Event{Payload: text})
		wantErr(t, "a long payload", err, cq.ErrInvalid, syscall.EINVAL)
		wantField(t, err, "len(Payload)")
		_, err = by.WriteErr(&cq.EventError{ErrData: text})
		wantField(t, err, "len(ErrData)")
	}
}

// TestEventTooSmall: an event whose payload does not fit stays, whatever else there is (P31).
func TestEventTooSmall(t *testing.T) {
	d, e := createEvents(t, cq.EventOptions{Write: true})
	w := attachEvents(t, d, e.Name())
	_, err := w.Write(&cq.Event{Event: cq.EventConnected, Context: 1, Payload: make([]byte, 20)})
	must(t, err)
	writeEvents(t, w, 2, 3)
	small := cq.Event{Context: 77, Payload: make([]byte, 3, 19)}
	for range 3 {
		for _, read := range []func(*cq.Event, cq.Flags) (int, error){e.Read,
			func(ev *cq.Event, f cq.Flags) (int, error) { return e.Read(ev, f|cq.FlagPeek) },
			func(ev *cq.Event, f cq.Flags) (int, error) { return eqSread(e, ev, time.Minute, f) }} {
			n, err := read(&small, 0)
			wantErr(t, "small buffer", err, cq.ETooSmall, syscall.EMSGSIZE)
			var too *cq.TooSmallError
			if !errors.As(err, &too) || too.NeedBytes != 20 || n != 0 {
				t.Fatalf("%d, %v", n, err)
			}
			if small.Context != 77 || len(small.Payload) != 3 {
				t.Errorf("changed: %+v", small)
			}
		}
		writeEvents(t, e, 10, 12)
	}
	ev := cq.Event{Payload: make([]byte, 0, 20)}
	if n, err := e.Read(&ev, 0); n != 44 || err != nil || ev.Context != 1 {
		t.Fatal(n, err, ev)
	}
	if got := drainEvents(t, e); len(got) != 7 {
		t.Errorf("%v", got)
	}
}

// TestEventErrors: error events come in order and stop reads until they are taken (P33).
func TestEventErrors(t *testing.T) {
	_, e := createEvents(t, cq.EventOptions{Write: true})
	bad := cq.EventError{FID: fabric(3), Context: 5, Data: 6, Err: cq.Errno(syscall.ECONNREFUSED),
		ProvErrno: -9, ErrData: []byte("refused by the peer, with a reason of more than 40 bytes")}
	writeEvents(t, e, 0, 2)
	n, err := e.WriteErr(&bad)
	if n != cq.EventErrorBytes || err != nil {
		t.Fatal(n, err)
	}
	writeEvents(t, e, 2, 3)
	var ev cq.Event
	got := cq.EventError{ErrData: make([]byte, 0, 100)}
	_, err = e.ReadErr(&got, 0)
	wantErr(t, "readerr before the error's turn", err, cq.ErrWouldBlock)
	for range 2 {
		_, err = e.Read(&ev, 0)
		must(t, err)
	}
	for range 2 {
		_, err = e.Read(&ev, 0)
		wantErr(t, "read at an error", err, cq.ErrAvail, cq.EAvail)
		_, err = eqSread(e, &ev, time.Minute, cq.FlagPeek)
		wantErr(t, "peek at an error", err, cq.ErrAvail)
		n, err = e.ReadErr(&got, cq.FlagPeek)
		if n != cq.EventErrorBytes || err != nil {
			t.Fatal(n, err)
		}
	}
	small := cq.EventError{ErrData: make([]byte, 0, 7)}
	_, err = e.ReadErr(&small, 0)
	must(t, err)
	if string(small.ErrData) != "refused" || small.ErrDataBytes != len(bad.ErrData) {
		t.Errorf("%q of %d", small.ErrData, small.ErrDataBytes)
	}
	if string(got.ErrData) != string(bad.ErrData) || got.FID != bad.FID || got.Context != 5 ||
		got.Data != 6 || got.Err != bad.Err || got.ProvErrno != -9 {
		t.Errorf("%+v", got)
	}
	wantErr(t, "an error event", &got, syscall.ECONNREFUSED, bad.Err)
	if !strings.Contains(got.Error(), "fabric 0000000000000003.1") {
		t.Error(got.Error())
	}
	_, err = e.ReadErr(&got, 0)
	wantErr(t, "readerr again", err, cq.ErrWouldBlock)
	if got := drainEvents(t, e); !slices.Equal(got, upTo(2, 3)) {
		t.Error(got)
	}
}

// TestEventNoErrors is T11.
func TestEventNoErrors(t *testing.T) {
	_, e := createEvents(t, cq.EventOptions{Write: true})
	writeEvents(t, e, 0, 5)
	if got := drainEvents(t, e); len(got) != 5 {
		t.Error(got)
	}
	_, err := e.ReadErr(&cq.EventError{}, 0)
	wantErr(t, "readerr", err, cq.ErrWouldBlock, syscall.EAGAIN)
	_, err = e.ReadErr(&cq.EventError{}, cq.FlagPeek)
	wantErr(t, "peekerr", err, cq.ErrWouldBlock)
}

// TestEventNoWrite: without permission the owner cannot write, its library and other processes can
// (P30).
func TestEventNoWrite(t *testing.T) {
	d, e := createEvents(t, cq.EventOptions{})
	_, err := e.Write(&cq.Event{})
	wantErr(t, "write", err, cq.ErrInvalid, syscall.EINVAL)
	wantField(t, err, "Write")
	_, err = e.WriteErr(&cq.EventError{})
	wantErr(t, "writeerr", err, cq.ErrInvalid, syscall.EINVAL)
	w := attachEvents(t, d, e.Name())
	writeEvents(t, w, 0, 1)
	must(t, cq.PostEvent(e, &cq.Event{Context: 1}))
	must(t, cq.PostEventError(e, &cq.EventError{Context: 2}))
	if got := drainEventsAnd(t, e); !slices.Equal(got, []uint64{0, 1, 2}) && !slices.Equal(got,
		[]uint64{1, 2, 0}) {
		t.Error(got)
	}
}

// drainEventsAnd is drainEvents that takes errors too.
func drainEventsAnd(t testing.TB, e *cq.EventQueue) (out []uint64) {
	t.Helper()
	var ev cq.Event
	for {
		_, err := e.Read(&ev, 0)
		switch err {
		case nil:
			out = append(out, ev.Context)
		case cq.ErrAvail:
			var bad cq.EventError
			_, err = e.ReadErr(&bad, 0)
			must(t, err)
			out = append(out, bad.Context)
		case cq.ErrWouldBlock:
			return out
		default:
			t.Fatal(err)
		}
	}
}

// TestEventTurns: a writer that is always ahead does not starve another.
func TestEventTurns(t *testing.T) {
	d, e := createEvents(t, cq.EventOptions{Size: 1024})
	a, b := attachEvents(t, d, e.Name()), attachEvents(t, d, e.Name())
	writeEvents(t, a, 0, 1000)
	writeEvents(t, b, 5000, 5010)
	var ev cq.Event
	for i := range 200 {
		_, err := e.Read(&ev, 0)
		must(t, err)
		if ev.Context == 5009 {
			return
		}
		if i == 199 {
			t.Error("200 events of the busy writer came first")
		}
	}
}

// TestEventOverrun is P35, end to end: what was written before is read, then it is final.
func TestEventOverrun(t *testing.T) {
	for _, own := range []bool{true, false} {
		t.Run(fmt.Sprint("own=", own), func(t *testing.T) {
			d, e := createEvents(t, cq.EventOptions{Size: 4, Overrun: cq.OverrunQueue, Write: true})
			other := attachEvents(t, d, e.Name())
			var w, quiet eventWriter = e, other
			if !own {
				w, quiet = other, e
			}
			writeEvents(t, quiet, 100, 102)
			writeEvents(t, w, 0, 4)
			for range 2 {
				_, err := w.Write(&cq.Event{})
				wantErr(t, "write to a full queue", err, cq.ErrOverrun, cq.EOverrun)
			}
			var got []uint64
			var ev cq.Event
			for range 6 {
				_, err := e.Read(&ev, 0)
				must(t, err)
				got = append(got, ev.Context)
			}
			slices.Sort(got)
			if !slices.Equal(got, []uint64{0, 1, 2, 3, 100, 101}) {
				t.Error(got)
			}
			for range 3 {
				_, err := e.Read(&ev, 0)
				wantErr(t, "read when drained", err, cq.ErrOverrun, cq.EOverrun)
				_, err = eqSread(e, &ev, time.Minute)
				wantErr(t, "sread when drained", err, cq.ErrOverrun)
				_, err = quiet.Write(&cq.Event{})
				wantErr(t, "write of another", err, cq.ErrOverrun)
				_, err = w.WriteErr(&cq.EventError{})
				wantErr(t, "writeerr", err, cq.ErrOverrun)
			}
		})
	}
}
