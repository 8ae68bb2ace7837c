package cq_test

import (
	"testing"

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
