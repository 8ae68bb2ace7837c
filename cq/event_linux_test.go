package cq_test

import (
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// TestEventIsNoQueue: one kind of queue cannot be used as the other.
func TestEventIsNoQueue(t *testing.T) {
	d, q := create(t, cq.Options{})
	_, err := cq.AdoptEvents(d, q.Name(), cq.EventOptions{})
	wantErr(t, "adopt a queue", err, shm.ErrKind, syscall.EINVAL)
	_, err = cq.OpenEvents(d, q.Name(), cq.EventOptions{})
	wantErr(t, "open a queue", err, shm.ErrKind)
	_, err = cq.AttachEvents(t.Context(), d, q.Name(), cq.WriterOptions{})
	wantErr(t, "attach to a queue", err, shm.ErrKind)

	e, err := cq.CreateEvents(d, "events", cq.EventOptions{})
	must(t, err)
	for what, use := range users(t, d, "events") {
		wantErr(t, what, use(), shm.ErrKind, syscall.EINVAL)
	}
	must(t, e.Close())
}
