package cq_test

import (
	"testing"

	"github.com/shmring/shmring/cq"
)

// pollers returns a queue that one writer has used and the reader only polls, long enough for idle
// lanes to be parked.
func pollers(b *testing.B) (*cq.Queue, *cq.Writer, []cq.Tagged) {
	b.Helper()
	d := openDir(b)
	q, err := cq.Create(d, "polled", cq.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = q.Close() })
	w, err := cq.Attach(b.Context(), d, "polled", cq.WriterOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = w.Close() })
	buf := make([]cq.Tagged, 64)
	for range 2000 {
		_, _ = cq.Read(q, buf)
	}
	if err := w.Post(&cq.Entry{}); err != nil {
		b.Fatal(err)
	}
	if n, err := cq.Read(q, buf); n != 1 {
		b.Fatal(n, err)
	}
	return q, w, buf
}

func BenchmarkPollEmpty(b *testing.B) {
	q, _, buf := pollers(b)
	for b.Loop() {
		_, _ = cq.Read(q, buf)
	}
}

func BenchmarkPollOne(b *testing.B) {
	q, w, buf := pollers(b)
	var e cq.Entry
	for b.Loop() {
		_ = w.Post(&e)
		_, _ = cq.Read(q, buf)
	}
}

func BenchmarkPollBatch(b *testing.B) {
	q, w, buf := pollers(b)
	es := make([]cq.Entry, 64)
	for b.Loop() {
		_, _ = w.PostBatch(es)
		_, _ = cq.Read(q, buf)
	}
}
