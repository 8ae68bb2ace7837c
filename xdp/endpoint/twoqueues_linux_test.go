package endpoint_test

import (
	"errors"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/endpoint"
)

// TestTwoQueues: what is received and what was sent complete in queues of their own, and a full one
// holds up nothing of the other.
func TestTwoQueues(t *testing.T) {
	shmtest.Conforms(t)
	d, err := shm.OpenDir("")
	must(t, err)
	received, err := cq.Create(cq.Named(d, "received"), cq.Options{Size: 8})
	must(t, err)
	lane, err := cq.Attach(t.Context(), cq.Named(d, "received"), cq.WriterOptions{})
	must(t, err)
	s := alone(t, configured(func(c *endpoint.Config) { c.Receive = lane }))
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), lane.Close(), received.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	})
	for range 12 { // four more than there is room for
		s.arrive(t, addrB, addrA, "in")
	}
	s.drive(t)
	for i := range uint64(20) {
		must(t, s.Send([]byte("out"), s.peer, i))
	}
	s.drive(t)
	sent := s.read(t)
	if len(sent) != 20 {
		t.Errorf("%d completions of sends", len(sent))
	}
	for _, e := range sent {
		if e.Flags&cq.FlagSend == 0 {
			t.Errorf("%+v", e)
		}
	}
	got := 0
	for {
		var es [16]cq.Entry
		n, err := cq.Read(received, es[:])
		if errors.Is(err, cq.ErrWouldBlock) {
			break
		}
		must(t, err)
		for i := range es[:n] {
			if es[i].Flags&cq.FlagRecv == 0 || s.text(t, &es[i]) != "in" {
				t.Errorf("%+v", es[i])
			}
		}
		got += n
		must(t, s.ReleaseBatch(es[:n]))
		s.drive(t)
	}
	if st := s.Stats(); got != 12 || st.RxBlocked == 0 {
		t.Errorf("%d datagrams: %+v", got, st)
	}
}
