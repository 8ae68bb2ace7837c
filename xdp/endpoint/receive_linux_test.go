package endpoint_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

var stranger = netip.MustParseAddrPort("192.0.2.9:99")

// arrive delivers a datagram to a side from anybody.
func (s *side) arrive(t testing.TB, from, to netip.AddrPort, payload string) {
	t.Helper()
	tm := shmtest.Got(packet.NewTemplate(macB, macA, from, to)).Or(t)
	var buf [2048]byte
	n := shmtest.Got(tm.Build(buf[:], []byte(payload))).Or(t)
	if !s.kernel.Deliver(buf[:n]) {
		t.Fatal("not delivered")
	}
}

// TestSources: a source is an index of the vector, or FI_ADDR_NOTAVAIL, as the vector is now.
func TestSources(t *testing.T) {
	shmtest.Conforms(t)
	s := alone(t, nil)
	s.arrive(t, addrB, addrA, "x")
	if e := s.one(t); e.Src.Addr() != s.peer {
		t.Errorf("%+v", e)
	}
	s.arrive(t, stranger, addrA, "x")
	if e := s.one(t); e.Src.Addr() != cq.AddrNotAvail {
		t.Errorf("%+v", e)
	}
	known := s.know(t, stranger)
	s.arrive(t, stranger, addrA, "x")
	e := s.one(t)
	if e.Src.Addr() != known {
		t.Errorf("%+v", e)
	}
	r, err := s.Record(e.Buf)
	if err != nil || r.Src != stranger || r.Dst != addrA || r.PayloadLen != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestRecords: the record of a frame is that of its own packet, whatever came before it in the same
// batch: of the same flow or of another one, tagged, or damaged and dropped.
func TestRecords(t *testing.T) {
	for name, umem := range map[string]xdp.UMEMOptions{"aligned": {Frames: 64},
		"unaligned": {Frames: 64, ChunkBytes: 3000, Unaligned: true}} {
		t.Run(name, func(t *testing.T) {
			s := alone(t, func(o *options) { o.umem = umem })
			r := rand.New(rand.NewPCG(5, 6))
			for range 300 {
				s.recordsOf(t, r)
			}
		})
	}
}

// recordsOf delivers a batch and looks at its records.
func (s *side) recordsOf(t *testing.T, r *rand.Rand) {
	t.Helper()
	var sent []xdp.Record
	for range 1 + r.IntN(12) {
		want := xdp.Record{Src: addrB, Dst: addrA, Flags: xdp.RecordChecksumOK}
		switch r.IntN(8) {
		case 0:
			want.Src = stranger
		case 1:
			want.Src = netip.AddrPortFrom(addrB.Addr(), 5)
		case 2:
			want.Dst = netip.AddrPortFrom(addrA.Addr(), 6)
		}
		path := packet.Path{LocalMAC: macB, NextMAC: macA, Src: want.Src, Dst: want.Dst}
		if r.IntN(6) == 0 {
			want.VLAN, want.Flags = 9, want.Flags|xdp.RecordVLAN
			path.Tags = []packet.Tag{{TCI: want.VLAN}}
		}
		tm := shmtest.Got(path.Template()).Or(t)
		var buf [256]byte
		want.PayloadLen = uint16(r.IntN(60))
		n, err := tm.Build(buf[:], bytes.Repeat([]byte{byte(want.PayloadLen)}, int(want.PayloadLen)))
		must(t, err)
		if r.IntN(6) == 0 {
			buf[tm.HeaderLen()-1] ^= 1 // the checksum
		} else {
			want.FrameLen = uint16(n)
			sent = append(sent, want)
		}
		s.kernel.Deliver(buf[:n])
	}
	s.drive(t)
	es := s.read(t)
	if len(es) != len(sent) {
		t.Fatalf("%d completions, want %d", len(es), len(sent))
	}
	for i := range es {
		got := shmtest.Got(s.Record(es[i].Buf)).Or(t)
		want := sent[i]
		chunk := s.Socket().UMEM().Geometry().Chunk(es[i].Buf.Offset())
		if chunk+uint64(got.PayloadOff) != es[i].Buf.Offset() || got.RxNs == 0 ||
			uint32(got.Sequence) != es[i].Meta.Seq() || es[i].Len != uint64(want.PayloadLen) {
			t.Fatalf("%+v of %+v", got, es[i])
		}
		want.PayloadOff, want.RxNs, want.Sequence = got.PayloadOff, got.RxNs, got.Sequence
		if text := s.text(t, &es[i]); got != want ||
			strings.Count(text, string(rune(want.PayloadLen))) != len(text) {
			t.Fatalf("%+v, want %+v, of %q", got, want, text)
		}
	}
	must(t, s.Release(es...))
}

// TestSourceErr: an unknown source makes an error entry that brings the data and the address, in
// order with the others.
func TestSourceErr(t *testing.T) {
	shmtest.Conforms(t)
	for _, posted := range []bool{false, true} {
		t.Run(map[bool]string{false: "loaned", true: "posted"}[posted], func(t *testing.T) {
			n := shmtest.Have(cq.CreateCounter(cq.Unnamed("received"), cq.CounterOptions{})).In(t)
			s := alone(t, configured(func(c *endpoint.Config) {
				c.SourceErr, c.Posted = true, posted
				c.Counters = map[*cq.Counter]cq.Flags{n: cq.FlagRecv}
			}))
			bufs := make([][]byte, 5)
			for i := range bufs {
				bufs[i] = make([]byte, 8)
				if posted {
					must(t, s.Recv(bufs[i], uint64(i)))
				}
			}
			for i, from := range []netip.AddrPort{addrB, stranger, addrB, stranger, addrB} {
				s.arrive(t, from, addrA, string(rune('a'+i)))
			}
			s.drive(t)
			for i := range 5 {
				want := string(rune('a' + i))
				if i%2 == 0 {
					var es [1]cq.Entry
					got, err := cq.Read(s.q, es[:])
					if got != 1 || err != nil || es[0].Src.Addr() != s.peer {
						t.Fatalf("%d: %+v, %v", i, es[0], err)
					}
					if !posted && s.text(t, &es[0]) != want {
						t.Errorf("%q", s.text(t, &es[0]))
					}
					if !posted {
						must(t, s.Release(es[0]))
					}
					continue
				}
				e := s.readErr(t)
				if !errors.Is(&e, syscall.EADDRNOTAVAIL) || e.Len != 1 ||
					!bytes.Equal(e.ErrData, cq.AppendSockaddr(nil, stranger)) || e.Src.Addr() != cq.AddrNotAvail {
					t.Errorf("%+v", e)
				}
				if posted {
					continue
				}
				b, err := s.Payload(&cq.Entry{Buf: e.Buf, Len: e.Len})
				if err != nil || string(b) != want {
					t.Errorf("%q, %v", b, err)
				}
				must(t, s.ReleaseError(&e))
				if err := s.ReleaseError(&e); err != endpoint.ErrFrame {
					t.Errorf("twice: %v", err)
				}
			}
			if posted && string(bufs[3][:1]) != "d" {
				t.Errorf("%q", bufs)
			}
			if v, _ := n.Read(); v != 5 {
				t.Errorf("counted %d", v)
			}
			s.drive(t)
			if f := s.Stats().Frames; f.Loaned+f.Received != 0 {
				t.Errorf("%+v", f)
			}
		})
	}
}

func TestRemoteData(t *testing.T) {
	shmtest.Conforms(t)
	a, b := newPair(t, configured(func(c *endpoint.Config) { c.RemoteData = true }))
	must(t, a.SendMsg(&endpoint.Msg{Buf: []byte("with"), Data: 1<<60 | 7, To: a.peer,
		Flags: cq.FlagRemoteCQData}))
	must(t, a.Send([]byte("without"), a.peer, 2))
	must(t, a.InjectMsg(&endpoint.Msg{Data: 9, To: a.peer, Flags: cq.FlagRemoteCQData}))
	f := shmtest.Got(a.Frame()).Or(t)
	must(t, a.SendFrame(f, copy(f.Bytes(), "frame"), &endpoint.Msg{To: a.peer, Data: 5,
		Flags: cq.FlagRemoteCQData}))
	b.arrive(t, addrA, addrB, "no header at all, but long enough")
	b.arrive(t, addrA, addrB, "short")
	b.arrive(t, addrA, addrB, "ShRM\x01\x00\x00\x00 version of tomorrow")
	b.arrive(t, addrA, addrB, "ShRM\x00\x02\x00\x00 flag of tomorrow")
	b.drive(t)
	es := b.read(t)
	if len(es) != 4 {
		t.Fatalf("%+v", es)
	}
	for i, want := range []struct {
		text string
		data uint64
		has  bool
	}{{"with", 1<<60 | 7, true}, {"without", 0, false}, {"", 9, true}, {"frame", 5, true}} {
		e := &es[i]
		if b.text(t, e) != want.text || e.Data != want.data ||
			(e.Flags&cq.FlagRemoteCQData != 0) != want.has {
			t.Errorf("%+v with %q, want %+v", e, b.text(t, e), want)
		}
	}
	must(t, b.Release(es...))
	b.drive(t)
	if s := b.Stats(); s.NoShim != 4 || s.Frames.Loaned != 0 {
		t.Errorf("%+v", s)
	}
	if err := a.Send(make([]byte, a.MaxPayload()+1), a.peer, 3); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("%v", err)
	}
	must(t, a.Send(make([]byte, a.MaxPayload()), a.peer, 3))
}

// TestFrames: a payload that is written into its frame goes out without a copy.
func TestFrames(t *testing.T) {
	s := alone(t, nil)
	f := shmtest.Got(s.Frame()).Or(t)
	n := copy(f.Bytes(), "in place")
	to := &endpoint.Msg{To: s.peer, Context: 1}
	if err := s.SendFrame(f, len(f.Bytes())+1, to); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("too long: %v", err)
	}
	if err := s.SendFrame(f, n, &endpoint.Msg{To: 99}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("to nobody: %v", err)
	}
	must(t, s.SendFrame(f, n, to))
	if err := s.SendFrame(f, n, to); !errors.Is(err, endpoint.ErrFrame) {
		t.Errorf("twice: %v", err)
	}
	if err := s.AbandonFrame(f); !errors.Is(err, endpoint.ErrFrame) {
		t.Errorf("given back after it was sent: %v", err)
	}
	if got := s.sent(t); len(got) != 1 || got[0] != "in place" {
		t.Errorf("%q", got)
	}
	if e := s.one(t); e.Context != 1 || e.Len != 8 {
		t.Errorf("%+v", e)
	}
	f = shmtest.Got(s.Frame()).Or(t)
	must(t, s.AbandonFrame(f))
	if err := s.AbandonFrame(f); err != endpoint.ErrFrame {
		t.Errorf("given back twice: %v", err)
	}
	if c := s.tx.Credits().Len(); c != 0 {
		t.Errorf("%d credits are left", c)
	}
	if st := s.Socket().FrameStats(); st.Build != 0 {
		t.Errorf("%+v", st)
	}
}

// TestFrameNowhere: a frame for a destination that cannot be reached is used up, with an error.
func TestFrameNowhere(t *testing.T) {
	s := alone(t, nil)
	f := shmtest.Got(s.Frame()).Or(t)
	must(t, s.SendFrame(f, 1, &endpoint.Msg{Dest: stranger, Context: 7}))
	if e := s.readErr(t); e.Context != 7 || !errors.Is(&e, syscall.EHOSTUNREACH) {
		t.Errorf("%+v", e)
	}
	if st := s.Socket().FrameStats(); st.Build != 0 || st.Illegal != 0 {
		t.Errorf("%+v", st)
	}
}

// TestBadPackets are dropped and counted, and their frames used again.
func TestBadPackets(t *testing.T) {
	shmtest.Conforms(t)
	s := alone(t, func(*options) {})
	tm := shmtest.Got(packet.NewTemplate(macB, macA, addrB, addrA)).Or(t)
	var buf [256]byte
	n := shmtest.Got(tm.Build(buf[:], []byte("sum"))).Or(t)
	for range 100 {
		s.kernel.Deliver(buf[:20])
		buf[n-1] ^= 1
		s.kernel.Deliver(buf[:n])
		buf[n-1] ^= 1
		s.drive(t)
	}
	s.kernel.Deliver(buf[:n])
	if e := s.one(t); s.text(t, &e) != "sum" {
		t.Errorf("%+v", e)
	}
	if st := s.Stats(); st.Malformed != 100 || st.BadChecksum != 100 || st.Received != 1 {
		t.Errorf("%+v", st)
	}
}

// TestWrongChecksums: datagrams with a wrong checksum are marked for who asked for them, and those
// with a right one too.
func TestWrongChecksums(t *testing.T) {
	s := alone(t, configured(func(c *endpoint.Config) { c.WrongChecksums = true }))
	tm := shmtest.Got(packet.NewTemplate(macB, macA, addrB, addrA)).Or(t)
	var buf [256]byte
	n := shmtest.Got(tm.Build(buf[:], []byte("sum"))).Or(t)
	const sumOff = packet.HeaderBytes - 2
	for _, c := range []struct {
		change func(b []byte)
		want   uint16
	}{
		{func([]byte) {}, xdp.RecordChecksumOK},
		{func(b []byte) { b[sumOff], b[sumOff+1] = 0, 0 }, 0},
		{func(b []byte) { b[sumOff] ^= 1 }, xdp.RecordChecksumWrong},
	} {
		b := bytes.Clone(buf[:n])
		c.change(b)
		s.kernel.Deliver(b)
		s.drive(t)
		e := s.one(t)
		rec := shmtest.Got(s.Record(e.Buf)).Or(t)
		if rec.Flags != c.want || s.text(t, &e) != "sum" {
			t.Errorf("flags %#x, want %#x", rec.Flags, c.want)
		}
	}
	if st := s.Stats(); st.BadChecksum != 0 || st.Received != 3 {
		t.Errorf("%+v", st)
	}
}

// TestBackPressure: packets wait in the receive ring while there is no room to report them.
func TestBackPressure(t *testing.T) {
	s := alone(t, func(o *options) { o.queue.Size = 8 })
	for i := range 20 {
		s.arrive(t, addrB, addrA, string(rune('a'+i)))
	}
	for i := range 20 {
		s.drive(t)
		es := shmtest.Got(s.q.Peek(1)).Or(t)
		if got := s.text(t, &es[0]); got != string(rune('a'+i)) {
			t.Fatalf("%d: %q", i, got)
		}
		must(t, s.Release(es[0]))
		must(t, s.q.Release(1))
	}
	if st := s.Stats(); st.RxBlocked == 0 || st.Received != 20 {
		t.Errorf("%+v", st)
	}
}

// TestGroups: datagrams to a group are marked, and to send to one takes no resolver.
func TestGroups(t *testing.T) {
	shmtest.Conforms(t)
	group := netip.MustParseAddrPort("239.1.2.3:4791")
	s := alone(t, configured(func(c *endpoint.Config) { c.LocalMAC = macA }))
	s.arrive(t, addrB, group, "all")
	if e := s.one(t); e.Flags&cq.FlagMulticast == 0 || e.Src.Addr() != s.peer {
		t.Errorf("%+v", e)
	}
	must(t, s.SendMsg(&endpoint.Msg{Dest: group, Buf: []byte("all"), Flags: cq.FlagMulticast}))
	p := s.kernel.TakeSent()[0]
	var d packet.Datagram
	must(t, packet.Parse(p, &d))
	if d.DstMAC != [6]byte{1, 0, 0x5e, 1, 2, 3} || d.Dst != group || d.Src != addrA {
		t.Errorf("%+v", d)
	}
	if err := s.Join(addrB.Addr()); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("join what is no group: %v", err)
	}
	if err := s.Leave(group.Addr()); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("leave what was not joined: %v", err)
	}
}

// TestForward: a loaned frame is sent back with what it holds, and is received into again after.
func TestForward(t *testing.T) {
	shmtest.Conforms(t)
	for _, data := range []bool{false, true} {
		t.Run(fmt.Sprint(data), func(t *testing.T) { forward(t, data) })
	}
}

func forward(t *testing.T, data bool) {
	a, b := newPair(t, configured(func(c *endpoint.Config) { c.RemoteData = data }))
	for i := range uint64(200) { // more often than there are frames
		must(t, a.Send([]byte("there and back"), a.peer, i))
		_ = a.one(t)
		e := b.one(t)
		payload := shmtest.Got(b.Payload(&e)).Or(t)
		copy(payload, "THERE")
		must(t, b.Forward(&e, 9, &endpoint.Msg{To: b.peer, Context: i}))
		if err := b.Forward(&e, 9, &endpoint.Msg{To: b.peer}); err != endpoint.ErrFrame {
			t.Fatalf("twice: %v", err)
		}
		if err := b.Release(e); err != endpoint.ErrFrame {
			t.Fatalf("given back after it was sent: %v", err)
		}
		if done := b.one(t); done.Context != i || done.Flags != cq.FlagSend|cq.FlagMsg {
			t.Fatalf("%+v", done)
		}
		back := a.one(t)
		if a.text(t, &back) != "THERE and" || back.Src.Addr() != a.peer {
			t.Fatalf("%+v: %q", back, a.text(t, &back))
		}
		must(t, a.Release(back))
	}
	b.drive(t)
	if st := b.Stats(); st.Forwarded != 200 || st.Frames.Loaned != 0 {
		t.Errorf("%+v", st)
	}
	if n := b.tx.Credits().Len(); n != 0 {
		t.Errorf("%d credits are left", n)
	}
}

// TestForwardRefused: a frame that cannot be sent on is still lent; one for a destination that
// cannot be reached is given back, with an error entry.
func TestForwardRefused(t *testing.T) {
	s := alone(t, nil)
	s.arrive(t, addrB, addrA, "hello")
	e := s.one(t)
	to := func(m endpoint.Msg) *endpoint.Msg { m.To = s.peer; return &m }
	other := e
	other.Meta += 1 << 32 // of another generation
	for what, c := range map[string]struct {
		err  error
		want syscall.Errno
	}{
		"too long":   {s.Forward(&e, 6, to(endpoint.Msg{})), syscall.EMSGSIZE},
		"negative":   {s.Forward(&e, -1, to(endpoint.Msg{})), syscall.EMSGSIZE},
		"to nobody":  {s.Forward(&e, 5, &endpoint.Msg{To: 99}), syscall.EINVAL},
		"inject":     {s.Forward(&e, 5, to(endpoint.Msg{Flags: cq.FlagInject})), syscall.EOPNOTSUPP},
		"generation": {s.Forward(&other, 5, to(endpoint.Msg{})), syscall.EINVAL},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v", what, c.err)
		}
	}
	if n := s.tx.Credits().Len(); n != 0 {
		t.Errorf("%d credits are left", n)
	}
	must(t, s.Forward(&e, 5, &endpoint.Msg{Dest: stranger, Context: 7}))
	if e := s.readErr(t); e.Context != 7 || !errors.Is(&e, syscall.EHOSTUNREACH) {
		t.Errorf("%+v", e)
	}
	if f := s.Socket().FrameStats(); f.Loaned != 0 {
		t.Errorf("%+v", f)
	}
}
