package fabric_test

import (
	"errors"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
)

// injector is an endpoint that has sent nothing but injects for so long that it ignores what their
// receiver tells.
type injector struct {
	a, b *end
	to   cq.Addr
	buf  [8]byte // is sent
	got  [8]byte
}

func quiet(t *testing.T) *injector {
	q := &injector{a: opened(t, "a", fabric.Options{Slots: 16}), b: opened(t, "b", fabric.Options{})}
	q.to = q.a.knows(t, "b")
	for i := range 100 {
		if i == 1 && !q.rung(t) {
			t.Error("a lane is ignored after one inject")
		}
		q.inject(t)
		completes(t, q.b)
	}
	q.a.steps(t)
	q.a.steps(t)
	return q
}

func (q *injector) inject(t *testing.T) {
	t.Helper()
	must(t, errors.Join(q.b.Recv(q.got[:], 1), q.a.Inject(q.buf[:], q.to)))
}

// rung reports whether an inject that is examined rings a sender that sleeps.
func (q *injector) rung(t *testing.T) bool {
	t.Helper()
	b := q.a.Bell()
	b.Lock()
	defer b.Unlock()
	more, err := b.Park()
	b.Unlock()
	q.inject(t)
	completes(t, q.b)
	b.Lock()
	must(t, err)
	return more || b.Pending()
}

// TestQuiet: who sends injects alone is not rung when they are examined. It is told of what it
// waits for, and of what ends the lane.
func TestQuiet(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, q *injector){
		"inject": func(t *testing.T, q *injector) {
			if q.rung(t) {
				t.Error("an inject was examined, and its sender is rung")
			}
		},
		"send": func(t *testing.T, q *injector) {
			for range 3 {
				must(t, errors.Join(q.b.Recv(q.got[:], 1), q.a.Send(q.buf[:], q.to, 2)))
				completes(t, q.b)
				if c := completes(t, q.a); c.Context != 2 {
					t.Errorf("a send completes as %+v", c)
				}
			}
			if !q.rung(t) {
				t.Error("the lane is ignored at the first inject after sends")
			}
		},
		"room": func(t *testing.T, q *injector) {
			n := 0
			for q.a.Inject(q.buf[:], q.to) == nil {
				n++
			}
			if n != 15 {
				t.Errorf("%d injects are a full lane of 16 slots", n)
			}
			sent := make(chan error)
			go func() {
				sent <- q.a.SendContext(t.Context(), &fabric.Msg{Addr: q.to, Buf: q.buf[:],
					Flags: cq.FlagInjectCall})
			}()
			for range n + 1 {
				must(t, q.b.Recv(q.got[:], 1))
				completes(t, q.b)
			}
			must(t, <-sent)
		},
		"fence": func(t *testing.T, q *injector) { // it waits for the injects before it
			must(t, errors.Join(q.a.Inject(q.buf[:], q.to), q.a.SendMsg(&fabric.Msg{Addr: q.to,
				Context: 3, Flags: cq.FlagFence})))
			moves(t, q.b, q.a, q.b, q.a)
			if done := q.a.completions(t); len(done) != 1 || done[0].Context != 3 {
				t.Errorf("a send behind injects completes as %+v", done)
			}
		},
		"grant": func(t *testing.T, q *injector) { // what was granted meanwhile a write may use
			a, b := opened(t, "c", fabric.Options{Slots: 1024}),
				opened(t, "d", fabric.Options{Window: 4096, Remote: 4096})
			r, err := b.Register(8, allAccess)
			must(t, err)
			to := a.knows(t, "d")
			for i := range 20 + 4096/64 { // all that the last look has found
				must(t, errors.Join(b.Recv(nil, 1), a.Inject(nil, to)))
				if b.steps(t); i == 19 {
					a.steps(t)
					a.steps(t)
				}
			}
			m := fabric.Msg{Addr: to, Flags: cq.FlagRemoteCQData}
			for i := 0; i == 0 || err == cq.ErrFull && i < 10; i++ {
				err = a.WriteMsg(&m, fabric.Remote{Key: r.Key()})
			}
			must(t, err)
		},
		"closes": func(t *testing.T, q *injector) {
			q.ends(t, fabric.ErrPeerClosed, func() { must(t, q.b.Endpoint.Close()) })
		},
		"refuses": func(t *testing.T, q *injector) {
			must(t, q.a.Inject(q.buf[:], q.to))
			last := &kind.FabricSlot{}
			for i, slots := 0, scribble(t, q.a, "a").slots; i < len(slots); i++ {
				if slots[i].Seq.Load() > last.Seq.Load() {
					last = &slots[i]
				}
			}
			last.Head.Store(1<<64 - 1)
			q.ends(t, fabric.ErrRefused, func() { q.b.steps(t) })
		},
	} {
		t.Run(name, func(t *testing.T) { test(t, quiet(t)) })
	}
}

// ends has the injector sleep while the lane ends, and wants to hear of that.
func (q *injector) ends(t *testing.T, want error, end func()) {
	t.Helper()
	b := q.a.Bell()
	b.Lock()
	more, err := b.Park()
	b.Unlock()
	end()
	b.Lock()
	rung := b.Pending()
	b.Unlock()
	q.a.steps(t)
	if sent := q.a.Inject(q.buf[:], q.to); more || err != nil || !rung || !errors.Is(sent, want) {
		t.Errorf("parked %v, %v; rung %v, then %v, want %v", more, err, rung, sent, want)
	}
}
