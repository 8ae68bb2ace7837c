package cq_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestHostileFlags: whatever a reader writes beside the parked bit of a writer's row, each way to
// post says so with an error, and none goes on without a slot.
func TestHostileFlags(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	const closed, overrun = 1 << 1, 1 << 2
	for bit := 1; bit < 64; bit++ {
		t.Run(fmt.Sprint(bit), func(t *testing.T) {
			d, q := create(t, cq.Options{Size: 8, MaxLanes: 1, Spin: -1})
			w := attach(t, d, q.Name())
			must(t, w.Credit(2))
			rows := scribble(t, d, q.Name(), "reader").section(t, cq.SectRows, 0)
			was := peek64(rows, cq.RowBytes)
			poke(rows, cq.RowBytes, was|1<<bit)
			want := map[uint64]error{closed: cq.ErrClosed, overrun: cq.ErrOverrun}[1<<bit]
			if want == nil {
				want = cq.ErrCorrupt
			}
			_, _, reserve := w.Reserve(1)
			_, batch := w.PostBatch(make([]cq.Entry, 2))
			for what, err := range map[string]error{"post": w.Post(&cq.Entry{}),
				"error": w.PostError(&cq.ErrorEntry{}), "credited": w.PostCredited(&cq.Entry{}),
				"credited error": w.PostErrorCredited(&cq.ErrorEntry{}), "credit": w.Credit(1),
				"reserve": reserve, "batch": batch} {
				if !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", what, err, want)
				}
			}
			if n := w.Credits(); n != 2 {
				t.Errorf("%d credits", n)
			}
			poke(rows, cq.RowBytes, was)
			must(t, w.Post(&cq.Entry{Context: 7}))
			if got := drain(t, q); len(got) != 1 || got[0] != 7 {
				t.Errorf("then %v", got)
			}
		})
	}
}
