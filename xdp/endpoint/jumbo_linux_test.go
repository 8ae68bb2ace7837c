package endpoint_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

func numbers(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7 >> 3)
	}
	return b
}

func jumboPair(t testing.TB, change func(o *options)) (a, b *side) {
	return newPair(t, func(o *options) {
		o.umem.Frames = 256
		o.sim = xdp.SimOptions{MTU: 9000, Options: xdp.Options{MultiBuffer: true}}
		if change != nil {
			change(o)
		}
		config := o.config
		o.config = func(c *endpoint.Config) {
			hop := xdp.Hop{LocalMAC: o.mac, NextMAC: o.next, MTU: 9000}
			c.Resolver = endpoint.Static{o.peer.Addr(): hop}
			if config != nil {
				config(c)
			}
		}
	})
}

// joined drives, reads one message that may lie in several frames, and gives these back.
func (s *side) joined(t testing.TB) (payload []byte, parts int, data uint64) {
	t.Helper()
	s.drive(t)
	es := s.read(t)
	for i := range es {
		e := &es[i]
		payload = append(payload, s.text(t, e)...)
		if more := e.Flags&cq.FlagMore != 0; more != (i < len(es)-1) || e.Src.Addr() != s.peer {
			t.Errorf("part %d of %d: %+v", i, len(es), e)
		}
		r, err := s.Record(e.Buf)
		if err != nil || r.Src.Addr() != addrA.Addr() || int(r.PayloadLen) != int(e.Len) {
			t.Errorf("%+v, %v", r, err)
		}
		data = e.Data
	}
	must(t, s.ReleaseBatch(es))
	return payload, len(es), data
}

// TestJumbo: a message longer than a frame goes in several, and comes as several completions, of
// which all but the last have FlagMore.
func TestJumbo(t *testing.T) {
	shmtest.Conforms(t)
	a, b := jumboPair(t, configured(func(c *endpoint.Config) { c.RemoteData = true }))
	for _, n := range []int{0, 100, 1600, 1700, 1720, 1728, 1729, 1750, 3500, a.MaxPayload()} {
		want := numbers(n)
		must(t, a.SendMsg(&endpoint.Msg{To: a.peer, Context: uint64(n), Iov: [][]byte{want[:n/2],
			want[n/2:]}, Data: 3, Flags: cq.FlagRemoteCQData}))
		if e := a.one(t); e.Context != uint64(n) || e.Len != uint64(n) {
			t.Errorf("%+v", e)
		}
		got, parts, data := b.joined(t)
		if !bytes.Equal(got, want) || data != 3 || parts != (n+58+1727)/1728 {
			t.Errorf("%d bytes came as %d in %d parts", n, len(got), parts)
		}
	}
	if err := a.Send(make([]byte, a.MaxPayload()+1), a.peer, 0); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("%v", err)
	}
	b.drive(t)
	if f := b.Stats().Frames; f.States[xdp.FrameLoaned]+f.States[xdp.FrameReceived] != 0 {
		t.Errorf("%+v", f)
	}
}

func TestJumboPosted(t *testing.T) {
	a, b := jumboPair(t, configured(func(c *endpoint.Config) { c.Posted = true }))
	want := numbers(8000)
	buf, small := make([]byte, 9000), make([]byte, 5000)
	must(t, b.Recv(buf, 1))
	must(t, b.Recv(small, 2))
	must(t, a.Inject(want, a.peer))
	must(t, a.Inject(want, a.peer))
	b.drive(t)
	if es := b.read(t); len(es) != 1 || !bytes.Equal(buf[:es[0].Len], want) {
		t.Errorf("%+v", es)
	}
	if e := b.readErr(t); e.Err != cq.ETrunc || e.OverrunBytes != 3000 ||
		!bytes.Equal(small, want[:5000]) {
		t.Errorf("%+v", e)
	}
}

// TestJumboUnknown: of an unknown source, too, all parts come, the first as an error entry.
func TestJumboUnknown(t *testing.T) {
	a, b := jumboPair(t, configured(func(c *endpoint.Config) { c.SourceErr = true }))
	must(t, b.av.Remove(b.peer))
	want := numbers(5000)
	must(t, a.Inject(want, a.peer))
	b.drive(t)
	e := b.readErr(t)
	first, err := b.Payload(&cq.Entry{Buf: e.Buf, Len: e.Len})
	must(t, err)
	got := bytes.Clone(first)
	if e.Flags&cq.FlagMore == 0 {
		t.Errorf("%+v", e)
	}
	must(t, b.ReleaseError(&e))
	es := b.read(t)
	for i := range es {
		got = append(got, b.text(t, &es[i])...)
	}
	must(t, b.ReleaseBatch(es))
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes in %d more parts", len(got), len(es))
	}
}

// TestJumboRoom: a packet waits until there is room for all of its parts.
func TestJumboRoom(t *testing.T) {
	a, b := jumboPair(t, func(o *options) { o.queue.Size = 32 })
	for range 12 {
		must(t, a.Inject(numbers(8000), a.peer)) // 5 frames
	}
	parts, got := 0, 0
	for range 60 { // two at a time: there is room for a part of a packet again and again
		_, err := b.Progress()
		must(t, err)
		var es [2]cq.Entry
		n, err := cq.Read(b.q, es[:])
		must(t, err)
		for i := range es[:n] {
			if parts++; es[i].Flags&cq.FlagMore == 0 {
				got++
			}
		}
		must(t, b.ReleaseBatch(es[:n]))
		if got == 12 {
			break
		}
	}
	if got != 12 || parts != 60 {
		t.Errorf("%d of 12 came, in %d parts", got, parts)
	}
	b.drive(t)
	if s := b.Stats(); s.Received != 12 {
		t.Errorf("%+v", s)
	}
}

// TestJumboFrames: send frames that run out in the middle of a packet are given back.
func TestJumboFrames(t *testing.T) {
	a, _ := jumboPair(t, nil)
	a.kernel.HoldCompletions(true)
	sent := 0
	for {
		err := a.Send(numbers(8000), a.peer, 1)
		if err == endpoint.ErrNoFrame {
			break
		}
		must(t, err)
		sent++
	}
	if f := a.Socket().FrameStats(); f.States[xdp.FrameBuild] != 0 || sent != 64/5 {
		t.Errorf("%d sent: %+v", sent, f)
	}
	a.kernel.Complete(1000)
	a.kernel.HoldCompletions(false)
	a.drive(t)
	if es := a.read(t); len(es) != sent {
		t.Errorf("%d of %d completed", len(es), sent)
	}
}
