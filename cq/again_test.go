package cq_test

import (
	"testing"

	"github.com/shmring/shmring/cq"
)

// TestRedeliveredApart: what may have been seen never comes in one call with what was not.
func TestRedeliveredApart(t *testing.T) {
	for _, again := range []int{1, 2} {
		d := openDir(t)
		q, err := cq.Create(d, "apart", cq.Options{Size: 8})
		must(t, err)
		ws := []*cq.Writer{attach(t, d, "apart"), attach(t, d, "apart")}
		post(t, ws[again-1], 0, 2)
		must(t, q.Detach())
		// As a reader does that dies with two entries handed out.
		rows := scribble(t, d, "apart", cq.ReaderFile).section(t, cq.SectRows, 0)
		poke(rows, again*cq.RowBytes+cq.OffHead+8, 2)
		q, err = cq.Adopt(d, "apart", cq.Options{})
		must(t, err)
		post(t, ws[2-again], 10, 12)
		for left := 4; left > 0; {
			dst := make([]cq.Context, 8)
			n, err := cq.Read(q, dst)
			must(t, err)
			for _, e := range dst[:n] {
				if q.Redelivered() != (e.Context < 10) {
					t.Errorf("lane %d: entry %d among %d: redelivered %v", again, e.Context, n, q.Redelivered())
				}
			}
			left -= n
		}
		closeQueue(t, q)
		for _, w := range ws {
			must(t, w.Close())
		}
	}
}
