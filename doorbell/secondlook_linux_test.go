package doorbell

import (
	"testing"

	"github.com/shmring/shmring/ring"
)

// A lane that is marked while others are looked at is found when the descriptor is armed.
func TestTryWaitSecondLook(t *testing.T) {
	face := must(NewFace(-1))
	defer face.Close()
	q := heapQueue(t, 2)
	r := newReader(q, readerOptions{face: face})
	if more, err := r.Park(); more || err != nil {
		t.Fatal(more, err)
	}
	r.Consider(0)
	other := q.writer(1, ring.SeqCst)
	r.level = func(int) {
		r.level = nil
		other.put(1) // nobody is armed yet
	}
	if ready, _, err := r.TryWait(); !ready || err != nil {
		t.Errorf("the user would block on an entry: %v, %v", ready, err)
	}
}
