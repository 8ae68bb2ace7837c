package cq_test

import (
	"errors"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

// TestOthersGivenUpIsMute: nobody listens to a writer of another user that was given up, whatever
// its tail does, also if the queue comes to a set later; that it has gone is noticed all the same.
func TestOthersGivenUpIsMute(t *testing.T) {
	const rings, most = 200, 50
	for name, o := range map[string]cq.Options{"shared": {Shared: true}, "set later": {}} {
		t.Run(name, func(t *testing.T) {
			o.Size, o.Spin = 8, -1
			q := anonymousOthers(t, o)
			h := startHostile(t, q)
			h.do(t, "lane 0", 1<<40)
			h.do(t, "ring", 1)
			var bad *cq.LaneError
			if _, err := cq.ReadContext(soon(t), q, make([]cq.Context, 1)); !errors.As(err, &bad) {
				t.Fatal(err)
			}
			if !o.Shared {
				addTo(t, waitSet(t, openDir(t), cq.WaitSetOptions{}), q)
			}
			if cq.Relays(q, bad.Lane) {
				t.Error("its rings are passed on")
			}
			before := q.Stats().Sleeps
			woken := make(chan struct{})
			go func() {
				defer close(woken)
				_, _ = cq.ReadTimeout(q, make([]cq.Context, 1), time.Hour)
			}()
			h.do(t, "swing", rings)
			must(t, q.Signal())
			<-woken
			if n := q.Stats().Sleeps - before; n > most {
				t.Errorf("%d sleeps for %d rings", n, rings)
			}
			h.kill()
			eventually(t, "the row is free", func() bool {
				_, _ = cq.Read(q, make([]cq.Context, 1))
				return q.Stats().Retired == 1
			})
		})
	}
}
