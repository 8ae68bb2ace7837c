package cq_test

import (
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestLostNotice: a death is told also if the kernel's notice of it is lost.
func TestLostNotice(t *testing.T) {
	shmtest.Long(t)
	_, q := create(t, cq.Options{Size: 8})
	e := eventsFor(t, q, cq.EventOptions{})
	c := namedWriter(t, q, 1)
	eventually(t, "it is watched", func() bool { return cq.LoseNotice(q, 1) })
	c.kill()
	wantDeath(t, e, q.FID(), cq.PeerWriter, c.Process.Pid)
	noNews(t, e)
}
