package cq_test

import (
	"testing"

	"github.com/shmring/shmring/cq"
)

// TestResetsAreCounted: what TryWait costs shows in the statistics, and only there.
func TestResetsAreCounted(t *testing.T) {
	d := openDir(t)
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitFD} {
		q, err := cq.Create(d, "resets", cq.Options{Wait: wait})
		if err != nil {
			t.Fatal(err)
		}
		if n := q.Stats().Resets; n != 0 {
			t.Errorf("%v: %d before the first TryWait", wait, n)
		}
		if wait == cq.WaitFD {
			if err := q.TryWait(); err != nil {
				t.Fatal(err)
			}
			if q.Stats().Resets == 0 {
				t.Error("TryWait made system calls that are not counted")
			}
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
