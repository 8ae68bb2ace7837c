package fabric_test

import (
	"errors"
	"io"
	"testing"

	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestMeetForgers: two that work together get no further than one alone. Who has met one of them
// goes on, and takes the next message.
func TestMeetForgers(t *testing.T) {
	for name, do := range map[string]func(a, b *forger){
		"the same objects": func(a, b *forger) {
			b.make()
			b.pass(a.obj.FD(), a.box.FD())
			b.leads()
			b.ready()
		},
		"the outbox of the other": func(a, b *forger) {
			b.make()
			b.pass(b.obj.FD(), a.box.FD())
			b.leads()
			high, low := kind.UuidWords(b.victim[0].Header().UUID)
			a.lane.TargetHigh.Store(high)
			a.lane.TargetLow.Store(low)
			b.ready()
		},
		"the endpoint of the other": func(a, b *forger) {
			b.make()
			b.pass(a.obj.FD(), b.box.FD())
			b.leads()
			b.ready()
		},
		"what the other was passed": func(a, b *forger) {
			b.pass(a.passed...)
			b.ready()
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := forged(t), forge(t)
			do(a, b)
			shmtest.WantErr(t, "the second meeting", <-b.met, fabric.ErrCorrupt)
			must(t, a.e.Recv(nil, 1))
			a.slots[0].Head.Store(kind.FabricMessage)
			a.slots[0].Seq.Store(1)
			a.rings()
			completes(t, a.e)
		})
	}
}

// TestMeetRelayed: two that pass what they get have those meet whom they met, and nobody else.
func TestMeetRelayed(t *testing.T) {
	a, b := forge(t), forge(t)
	var fds [2][]int
	for i, f := range []*forger{a, b} {
		var err error
		_, fds[i], err = shm.RecvFDs(f.conn, make([]byte, 16), 2)
		must(t, err)
		defer shm.CloseFDs(fds[i])
	}
	a.pass(fds[1]...)
	b.pass(fds[0]...)
	for _, f := range []*forger{a, b} { // both have led
		shmtest.Got(io.ReadFull(f.conn, make([]byte, 16))).Or(t)
	}
	a.ready()
	b.ready()
	must(t, errors.Join(<-a.met, <-b.met))
	must(t, errors.Join(a.conn.Close(), b.conn.Close()))
	must(t, errors.Join(b.e.Recv(nil, 1), a.e.Send(nil, 0, 2)))
	completes(t, b.e)
	completes(t, a.e)
	must(t, errors.Join(a.e.close(), b.e.close()))
}
