package cq_test

import (
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// killOther has a writer of another user post once, end, and its lane be retired.
func killOther(t *testing.T, q *cq.Queue) (pid int) {
	t.Helper()
	before := q.Stats().Retired
	w := startWriterOther(t, q)
	w.post(t, 0, 1)
	w.kill()
	eventually(t, "its lane is retired", func() bool {
		_, _ = sread(q, make([]cq.Context, 1), time.Millisecond)
		return q.Stats().Retired > before
	})
	return w.Process.Pid
}

// TestDeathOutlivesItsSink: what was not reported to one event queue, because it was full, closed
// or not bound yet, is reported to the next one, also if the dead writer was of another user and
// its lane is gone.
func TestDeathOutlivesItsSink(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	_ = asNobody(t) // a skip later would leave what is bound
	q := anonymousOthers(t, cq.Options{Size: 8, Spin: -1})
	full, next := fullEvents(t, "full"), fullEvents(t, "next")
	must(t, q.BindEvents(full))
	_, err := full.Write(&cq.Event{Event: cq.EventUser})
	must(t, err)
	pids := []int{killOther(t, q)}
	time.Sleep(250 * time.Millisecond) // it is found out
	pids = append(pids, killOther(t, q))
	must(t, q.BindEvents(next))
	for _, pid := range pids {
		wantDeath(t, next, q.FID(), cq.PeerWriter, pid)
	}
	must(t, q.BindEvents(nil))
	killOther(t, q)
	last := killOther(t, q) // the same row: it has had another writer since
	must(t, q.BindEvents(next))
	wantDeath(t, next, q.FID(), cq.PeerWriter, last)
	must(t, q.BindEvents(nil))
	must(t, q.BindEvents(next))
	noNews(t, next)
	must(t, q.BindEvents(nil))
	must(t, full.Close())
	must(t, next.Close())
}
