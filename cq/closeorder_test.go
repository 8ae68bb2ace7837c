package cq

import (
	"io"
	"reflect"
	"testing"

	"github.com/shmring/shmring/shm"
)

// foreign is an object of another package that is bound to something here.
type foreign struct{}

func (foreign) Close() error { return nil }

// TestClosingOrder: one of each kind, in every order, is closed in one and the same order.
func TestClosingOrder(t *testing.T) {
	t.Parallel()
	want := []io.Closer{foreign{}, &Binding{}, &Writer{}, &MemoryRegion{}, &Queue{}, &Counter{},
		&AddressVector{}, &EventQueue{}, &Channel{}, &WaitSet{}}
	given := append([]io.Closer{nil, (*Queue)(nil)}, want...)
	some := given[3:] // the order of what is foreign is its own
	var permute func(n int)
	permute = func(n int) { // by swapping: Heap's algorithm
		if n == 1 {
			if got := closingOrder(given); !equalKinds(got, want) {
				t.Fatalf("%T becomes %T", given, got)
			}
			return
		}
		for i := range n {
			permute(n - 1)
			if n%2 == 0 {
				some[i], some[n-1] = some[n-1], some[i]
			} else {
				some[0], some[n-1] = some[n-1], some[0]
			}
		}
	}
	permute(len(some))
	last := []io.Closer{&shm.Dir{}, &shm.Object{}, &WaitSet{}, &PollSet{}, &EventWriter{}}
	got := closingOrder(last)
	for i := range got {
		if got[len(got)-1-i] != last[i] {
			t.Errorf("%d is %T", i, got[i])
		}
	}
}

func equalKinds(a, b []io.Closer) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if reflect.TypeOf(a[i]) != reflect.TypeOf(b[i]) {
			return false
		}
	}
	return true
}
