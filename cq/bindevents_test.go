package cq_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestBindEventsBesideClose: a queue is bound to a writer of events, again and again, that somebody
// closes at the same time, whose memory goes with that.
func TestBindEventsBesideClose(t *testing.T) {
	shmtest.Long(t)
	d, e := createEvents(t, cq.EventOptions{Size: 1 << 6})
	q, err := cq.CreateAnonymous(queueName(t), cq.Options{Size: 4})
	must(t, err)
	for range 30 {
		w, err := cq.AttachEvents(t.Context(), d, e.Name(), cq.WriterOptions{})
		must(t, err)
		bound, refused := make(chan struct{}), make(chan error)
		go func() {
			err := q.BindEvents(w)
			close(bound)
			for err == nil {
				err = errors.Join(q.BindEvents(nil), q.BindEvents(w))
			}
			refused <- err
		}()
		<-bound
		for err = w.Close(); errors.Is(err, cq.ErrBusy); err = w.Close() {
			runtime.Gosched()
		}
		must(t, err)
		if err := <-refused; !errors.Is(err, cq.ErrClosed) {
			t.Fatal(err)
		}
	}
	must(t, q.Close())
}
