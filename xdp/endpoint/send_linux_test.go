package endpoint_test

import (
	"testing"

	"github.com/shmring/shmring/cq"
)

func TestSendReceive(t *testing.T) {
	a, b := newPair(t, nil)
	for i := range uint64(200) {
		must(t, a.Send([]byte("hello"), a.peer, i))
		if e := a.one(t); e.Context != i || e.Flags != cq.FlagSend|cq.FlagMsg {
			t.Fatalf("sent: %+v", e)
		}
		e := b.one(t)
		const kind = cq.FlagRecv | cq.FlagMsg | cq.FlagFrame | cq.FlagNoContext
		if e.Flags != kind || e.Src != b.peer || e.Len != 5 ||
			b.text(t, &e) != "hello" {
			t.Fatalf("received: %+v", e)
		}
		must(t, b.Release(&e))
		if err := b.Release(&e); err == nil {
			t.Fatal("a frame was given back twice")
		}
	}
}
