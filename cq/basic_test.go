package cq_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

func TestPostAndRead(t *testing.T) {
	d := openDir(t)
	q, err := cq.Create(d, "orders", cq.Options{Size: 8})
	if err != nil {
		t.Fatal(err)
	}
	w, err := cq.Attach(t.Context(), d, "orders", cq.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cq.Read(q, make([]cq.Msg, 4)); err != cq.ErrWouldBlock {
		t.Fatalf("empty queue: %v", err)
	}
	for i := range uint64(20) {
		if err := w.Post(&cq.Entry{Context: i, Flags: cq.FlagSend | cq.FlagMsg, Tag: i * 2}); err != nil {
			t.Fatal(err)
		}
		got := make([]cq.Tagged, 4)
		n, err := cq.Read(q, got)
		if n != 1 || err != nil || got[0].Context != i || got[0].Tag != i*2 {
			t.Fatalf("read %d, %v, %+v", n, err, got[0])
		}
	}
	for i := range uint64(8) {
		if err := w.Post(&cq.Entry{Context: i}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Post(&cq.Entry{}); !errors.Is(err, cq.ErrFull) {
		t.Fatalf("ninth post: %v", err)
	}
	es, err := q.Peek(64)
	if err != nil {
		t.Fatal(err)
	}
	n := len(es)
	if err := q.Release(n); err != nil {
		t.Fatal(err)
	}
	for n < 8 {
		es, err := q.Peek(64)
		if err != nil {
			t.Fatal(n, err)
		}
		n += len(es)
		if err := q.Release(len(es)); err != nil {
			t.Fatal(err)
		}
	}
	_, err = sread(q, make([]cq.Msg, 4), 5*time.Millisecond)
	if !errors.Is(err, cq.ErrTimedOut) {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestBlockedReaderWakes(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	q, err := cq.Create(d, "wake", cq.Options{Spin: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	done := make(chan error)
	go func() {
		w, err := cq.Attach(context.Background(), d, "wake", cq.WriterOptions{})
		for i := uint64(0); i < 1000 && err == nil; i++ {
			err = w.Post(&cq.Entry{Context: i})
			if i%10 == 0 {
				time.Sleep(100 * time.Microsecond)
			}
		}
		done <- errors.Join(err, w.Close())
	}()
	buf := make([]cq.Context, 16)
	for next := uint64(0); next < 1000; {
		n, err := cq.ReadContext(t.Context(), q, buf, cq.ReadOptions{})
		if err != nil {
			t.Fatal(next, err)
		}
		for _, e := range buf[:n] {
			if e.Context != next {
				t.Fatalf("got %d, want %d", e.Context, next)
			}
			next++
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
