package doorbell

import (
	"testing"

	"github.com/shmring/shmring/ring"
)

// TestOnly walks through what changes the answer of Only.
func TestOnly(t *testing.T) {
	q := heapQueue(t, 100)
	r := newReader(q, readerOptions{})
	want := func(when string, only int) {
		t.Helper()
		if got := r.Only(); got != only {
			t.Errorf("%s: %d, want %d", when, got, only)
		}
	}
	want("nobody has looked", Several)
	r.read(1)
	want("all lanes are empty", Nobody)
	for bit := range q.lanes {
		if q.row(bit).Parked.Load() != Parked {
			t.Fatalf("lane %d is un-parked and empty", bit)
		}
	}
	w, v := q.writer(70, ring.SeqCst), q.writer(99, ring.SeqCst)
	w.put(1)
	want("a lane is marked", Several)
	if r.read(1) != 1 {
		t.Fatal("nothing was read")
	}
	want("that lane is hot", 70)
	w.put(1)
	want("it has more, without a mark", 70)
	v.put(1)
	want("another one is marked", Several)
	r.read(3)
	want("two are hot", Several)
	if _, err := r.Park(); err != nil {
		t.Fatal(err)
	}
	want("both are parked", Several)
	r.read(1)
	want("both are empty", Nobody)
	v.put(1)
	r.read(1)
	want("the second is hot", 99)
	r.LookCloser()
	want("the caller thinks of something", Several)
	r.read(1)
	want("no more", 99)
	if _, err := r.Park(); err != nil {
		t.Fatal(err)
	}
	want("it is parked", Several)
	v.put(1)
	r.read(1)
	r.Consider(3)
	want("a lane is to be looked at", Several)
	r.read(1)
	r.Drop(99)
	want("the lane is dropped", Several)
}

// With more marks than it looks at, Only is never sure.
func TestOnlyOfMany(t *testing.T) {
	q := heapQueue(t, 129)
	r := newReader(q, readerOptions{})
	r.read(1)
	if got := r.Only(); got != Several {
		t.Error(got)
	}
}
