package endpoint_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

func TestSendReceive(t *testing.T) {
	shmtest.Conforms(t)
	a, b := newPair(t, nil)
	for i := range uint64(200) {
		must(t, a.Send([]byte("hello"), a.peer, i))
		if e := a.one(t); e.Context != i || e.Flags != cq.FlagSend|cq.FlagMsg {
			t.Fatalf("sent: %+v", e)
		}
		e := b.one(t)
		const kind = cq.FlagRecv | cq.FlagMsg | cq.FlagFrame | cq.FlagNoContext
		if e.Flags != kind || e.Src.Addr() != b.peer || e.Len != 5 ||
			b.text(t, &e) != "hello" {
			t.Fatalf("received: %+v", e)
		}
		must(t, b.Release(e))
		if err := b.Release(e); err == nil {
			t.Fatal("a frame was given back twice")
		}
	}
}

// parsed returns the datagrams that the kernel was given to send.
func (s *side) sent(t testing.TB) (out []string) {
	t.Helper()
	for _, p := range s.kernel.TakeSent() {
		var d packet.Datagram
		must(t, packet.Parse(p, &d))
		if c := packet.VerifyUDP(p, &d); c != packet.ChecksumOK {
			t.Errorf("checksum %v", c)
		}
		out = append(out, string(p[d.PayloadOff:d.PayloadOff+d.PayloadLen]))
	}
	return out
}

// alone is a side whose packets go nowhere; they are seen by sent.
func alone(t testing.TB, change func(o *options)) *side {
	t.Helper()
	o := sideOptions()
	if change != nil {
		change(&o)
	}
	return newSide(t, "alone", o)
}

func configured(f func(c *endpoint.Config)) func(o *options) {
	return func(o *options) { o.config = f }
}

func TestSendScatter(t *testing.T) {
	s := alone(t, nil)
	must(t, s.SendMsg(&endpoint.Msg{To: s.peer, Buf: []byte("one"), Context: 1,
		Iov: [][]byte{[]byte(" two"), nil, []byte(" three")}}))
	if got := s.sent(t); !slices.Equal(got, []string{"one two three"}) {
		t.Errorf("%q", got)
	}
	if e := s.one(t); e.Context != 1 || e.Len != 13 {
		t.Errorf("%+v", e)
	}
	err := s.SendMsg(&endpoint.Msg{To: s.peer, Iov: make([][]byte, endpoint.MaxPieces+1)})
	if !errors.Is(err, syscall.EINVAL) {
		t.Errorf("too many pieces: %v", err)
	}
}

// TestSendRefused: what can never be sent is refused at post, and leaves no credit behind.
func TestSendRefused(t *testing.T) {
	s := alone(t, nil)
	big := make([]byte, s.MaxPayload()+1)
	must(t, s.Send(big[1:], s.peer, 0))
	other := netip.MustParseAddrPort("[2001:db8::1]:5")
	for what, c := range map[string]struct {
		err  error
		want syscall.Errno
	}{
		"too big":       {s.Send(big, s.peer, 1), syscall.EMSGSIZE},
		"no such index": {s.Send(nil, s.peer+1, 1), syscall.EINVAL},
		"beyond":        {s.Send(nil, 99, 1), syscall.EINVAL},
		"not available": {s.Send(nil, cq.AddrNotAvail, 1), syscall.EINVAL},
		"no port": {s.SendMsg(&endpoint.Msg{Dest: netip.AddrPortFrom(addrB.Addr(), 0)}),
			syscall.EINVAL},
		"data": {flagged(s, cq.FlagRemoteCQData), syscall.EOPNOTSUPP},
		"inject data": {s.InjectMsg(&endpoint.Msg{To: s.peer, Flags: cq.FlagRemoteCQData}),
			syscall.EOPNOTSUPP},
		"delivery":     {flagged(s, cq.FlagDeliveryComplete), syscall.EOPNOTSUPP},
		"match":        {flagged(s, cq.FlagMatchComplete), syscall.EOPNOTSUPP},
		"commit":       {flagged(s, cq.FlagCommitComplete), syscall.EOPNOTSUPP},
		"unknown flag": {flagged(s, cq.FlagPeek), syscall.EINVAL},
		"not a group":  {flagged(s, cq.FlagMulticast), syscall.EINVAL},
		"inject to no-one": {s.InjectMsg(&endpoint.Msg{Dest: netip.MustParseAddrPort("192.0.2.77:5")}),
			syscall.EHOSTUNREACH},
		"inject over v6": {s.InjectMsg(&endpoint.Msg{Dest: other}), syscall.EHOSTUNREACH},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v", what, c.err)
		}
	}
	if e := s.one(t); e.Context != 0 {
		t.Errorf("%+v", e)
	}
	if n := s.tx.Credits().Len(); n != 0 {
		t.Errorf("%d credits are left", n)
	}
}

func flagged(s *side, f cq.Flags) error {
	return s.SendMsg(&endpoint.Msg{To: s.peer, Flags: f})
}

// resolver says what it is told.
type resolver struct {
	hop   xdp.Hop
	err   error
	asked int
}

func (r *resolver) Lookup(netip.Addr) (xdp.Hop, error) {
	r.asked++
	return r.hop, r.err
}

// TestResolver: a way that is not known yet is EAGAIN, none is an error entry, and headers follow
// the way when it changes.
func TestResolver(t *testing.T) {
	r := &resolver{err: fmt.Errorf("asked: %w", packet.ErrResolving)}
	s := alone(t, configured(func(c *endpoint.Config) { c.Resolver = r }))
	if err := s.Send(nil, s.peer, 1); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("resolving: %v", err)
	}
	r.err = packet.ErrUnreachable
	must(t, s.Send(nil, s.peer, 2))
	e := s.readErr(t)
	if e.Context != 2 || !errors.Is(&e, syscall.EHOSTUNREACH) || e.Flags != cq.FlagSend|cq.FlagMsg {
		t.Errorf("%+v", e)
	}
	r.err, r.hop = nil, xdp.Hop{LocalMAC: macA, NextMAC: macB, Source: addrA.Addr(), MTU: 100}
	must(t, s.Send(make([]byte, 72), s.peer, 3))
	if err := s.Send(make([]byte, 73), s.peer, 4); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("beyond the MTU of the path: %v", err)
	}
	r.hop.NextMAC[5], r.hop.Generation = 77, 1
	must(t, s.Send(nil, s.peer, 5))
	sent := s.kernel.TakeSent()
	if len(sent) != 2 || sent[0][5] != macB[5] || sent[1][5] != 77 {
		t.Errorf("%x", sent)
	}
	before := r.asked
	ms := make([]endpoint.Msg, 8)
	for i := range ms {
		ms[i] = endpoint.Msg{To: s.peer}
	}
	shmtest.Got(s.SendBatch(ms)).Or(t)
	if r.asked-before > 1 {
		t.Errorf("asked %d times for a batch", r.asked-before)
	}
	if n := s.tx.Credits().Len(); n != 0 {
		t.Errorf("%d credits are left", n)
	}
}

// TestAddressChanges: an index of the vector may come to mean somebody else.
func TestAddressChanges(t *testing.T) {
	s := alone(t, configured(func(c *endpoint.Config) {
		r := &resolver{hop: xdp.Hop{LocalMAC: macA, NextMAC: macB, Source: addrA.Addr()}}
		c.Resolver = r
	}))
	var d packet.Datagram
	for _, to := range []string{"192.0.2.2:4791", "192.0.2.7:7"} {
		must(t, s.av.Remove(s.peer))
		if s.know(t, netip.MustParseAddrPort(to)) != s.peer {
			t.Fatal("another index")
		}
		must(t, s.Inject(nil, s.peer))
		must(t, packet.Parse(s.kernel.TakeSent()[0], &d))
		if d.Dst.String() != to || d.Src != addrA {
			t.Errorf("from %v to %v", d.Src, d.Dst)
		}
	}
}

func TestSendIPv6AndTags(t *testing.T) {
	self := netip.MustParseAddrPort("[2001:db8::1]:9")
	peer := netip.MustParseAddrPort("[2001:db8::2]:9")
	s := alone(t, func(o *options) {
		o.self, o.peer = self, peer
		o.config = func(c *endpoint.Config) { c.Tags, c.HopLimit = []endpoint.Tag{{TCI: 5}}, 9 }
	})
	must(t, s.Send([]byte("six"), s.peer, 1))
	f := shmtest.Got(s.Frame()).Or(t)
	must(t, s.SendFrame(f, copy(f.Bytes(), "frame"), &endpoint.Msg{To: s.peer, Context: 2}))
	for i, p := range s.kernel.TakeSent() {
		var d packet.Datagram
		must(t, packet.Parse(p, &d))
		want := []string{"six", "frame"}[i]
		if d.Src != self || d.Dst != peer || d.VLAN != 5 || p[d.IPOff+7] != 9 ||
			string(p[d.PayloadOff:]) != want || packet.VerifyUDP(p, &d) != packet.ChecksumOK {
			t.Errorf("%+v: %q", d, p[d.PayloadOff:])
		}
	}
	if es := s.read(t); len(es) != 2 {
		t.Errorf("%+v", es)
	}
	if err := s.Send(make([]byte, 1453), s.peer, 3); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("%v", err)
	}
	must(t, s.Send(make([]byte, 1452), s.peer, 3))
}

// TestMore: with FlagMore the kernel is told once, by the last.
func TestMore(t *testing.T) {
	s := alone(t, nil)
	kicks := func() uint64 { s.drive(t); return s.Socket().SyscallStats().Send }
	before := kicks()
	for i := range uint64(8) {
		m := endpoint.Msg{To: s.peer, Context: i, Flags: cq.FlagMore}
		if i == 7 {
			m.Flags = 0
		}
		if i > 0 && s.kernel.Tx.Used() != 0 {
			t.Fatal("the kernel was told of a send with FlagMore")
		}
		must(t, s.SendMsg(&m))
	}
	if n := kicks() - before; n != 1 {
		t.Errorf("%d kicks for one batch", n)
	}
	ms := make([]endpoint.Msg, 20)
	for i := range ms {
		ms[i] = endpoint.Msg{To: s.peer, Context: uint64(8 + i)}
	}
	ms[12].To = 99
	before = kicks()
	if n, err := s.SendBatch(ms); n != 12 || !errors.Is(err, endpoint.ErrAddress) {
		t.Errorf("%d, %v", n, err)
	}
	if n := kicks() - before; n != 1 {
		t.Errorf("%d kicks for one batch", n)
	}
	for i, e := range s.read(t) {
		if e.Context != uint64(i) {
			t.Errorf("%d is %+v", i, e)
		}
	}
	must(t, flagged(s, cq.FlagMore))
	s.Flush()
	if n := len(s.sent(t)); n != 21 {
		t.Errorf("%d were sent", n)
	}
}

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
		o.sim = xdptest.SimOptions{MTU: 9000, Options: xdp.Options{MultiBuffer: true}}
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
	must(t, s.Release(es...))
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
	if f := b.Stats().Frames; f.Loaned+f.Received != 0 {
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
	first := shmtest.Got(b.Payload(&cq.Entry{Buf: e.Buf, Len: e.Len})).Or(t)
	got := bytes.Clone(first)
	if e.Flags&cq.FlagMore == 0 {
		t.Errorf("%+v", e)
	}
	must(t, b.ReleaseError(&e))
	es := b.read(t)
	for i := range es {
		got = append(got, b.text(t, &es[i])...)
	}
	must(t, b.Release(es...))
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes in %d more parts", len(got), len(es))
	}
}

// TestJumboPadded: of a packet whose payload ends in its first frame nothing follows, however long
// it is.
func TestJumboPadded(t *testing.T) {
	_, b := jumboPair(t, nil)
	tm := shmtest.Got(packet.NewTemplate(macA, macB, addrA, addrB)).Or(t)
	var frame [4000]byte
	shmtest.Got(tm.Build(frame[:], []byte("short"))).Or(t)
	if !b.kernel.Deliver(frame[:]) {
		t.Fatal("not delivered")
	}
	if got, parts, _ := b.joined(t); string(got) != "short" || parts != 1 {
		t.Errorf("%q in %d parts", got, parts)
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
		shmtest.Got(b.Progress()).Or(t)
		var es [2]cq.Entry
		n := shmtest.Got(cq.Read(b.q, es[:])).Or(t)
		for i := range es[:n] {
			if parts++; es[i].Flags&cq.FlagMore == 0 {
				got++
			}
		}
		must(t, b.Release(es[:n]...))
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
	if f := a.Socket().FrameStats(); f.Build != 0 || sent != 64/5 {
		t.Errorf("%d sent: %+v", sent, f)
	}
	a.kernel.Complete(1000)
	a.kernel.HoldCompletions(false)
	a.drive(t)
	if es := a.read(t); len(es) != sent {
		t.Errorf("%d of %d completed", len(es), sent)
	}
}
