package endpoint_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

// TestLevels: inject complete says that the payload can be used again, transmit complete that the
// kernel gave the frame back.
func TestLevels(t *testing.T) {
	shmtest.Conforms(t)
	s := alone(t, nil)
	s.kernel.HoldCompletions(true)
	post := func(context uint64, f cq.Flags) {
		must(t, s.SendMsg(&endpoint.Msg{To: s.peer, Context: context, Flags: f}))
	}
	post(1, 0)
	post(2, cq.FlagTransmitComplete)
	post(3, cq.FlagInject)
	post(4, cq.FlagInjectComplete)
	post(5, cq.FlagInjectComplete|cq.FlagTransmitComplete)
	if e := s.one(t); e.Context != 4 {
		t.Errorf("before the kernel is done: %+v", e)
	}
	s.kernel.Complete(100)
	s.drive(t)
	var got []uint64
	for _, e := range s.read(t) {
		got = append(got, e.Context)
	}
	if len(got) != 4 || got[0] != 1 || got[1] != 2 || got[2] != 3 || got[3] != 5 {
		t.Errorf("after it: %v", got)
	}
	if n := s.tx.Credits().Len(); n != 0 {
		t.Errorf("%d credits are left", n)
	}
}

// TestLevelsFailing: a send fails after it was accepted. Who was told no more than that the payload
// may be used again hears nothing of it; who waits for more gets an error, and no completion.
func TestLevelsFailing(t *testing.T) {
	shmtest.Conforms(t)
	for name, c := range map[string]struct {
		flags cq.Flags
		early bool
	}{
		"none":                {0, false},
		"inject":              {cq.FlagInjectComplete, true},
		"transmit":            {cq.FlagTransmitComplete, false},
		"inject and transmit": {cq.FlagInjectComplete | cq.FlagTransmitComplete, false},
		"fi_inject's flag":    {cq.FlagInject, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := alone(t, nil)
			s.kernel.Refuse(1)
			must(t, s.SendMsg(&endpoint.Msg{To: s.peer, Context: 7, Flags: c.flags}))
			s.drive(t)
			if c.early {
				if e := s.one(t); e.Context != 7 {
					t.Errorf("%+v", e)
				}
			} else if e := s.readErr(t); e.Context != 7 || !errors.Is(&e, syscall.EIO) {
				t.Errorf("%+v", e)
			}
			if es := s.read(t); len(es) != 0 {
				t.Errorf("more than one end: %+v", es)
			}
			if n := len(s.sent(t)); n != 0 {
				t.Errorf("%d were sent", n)
			}
			if n := s.tx.Credits().Len(); n != 0 {
				t.Errorf("%d credits are left", n)
			}
		})
	}
}

// TestLevelsLong: the longest datagram reaches each level, also that of fi_inject's completion,
// which has no size of its own.
func TestLevelsLong(t *testing.T) {
	shmtest.Conforms(t)
	s := alone(t, nil)
	long := make([]byte, s.MaxPayload())
	for i, f := range []cq.Flags{0, cq.FlagInjectComplete, cq.FlagTransmitComplete} {
		must(t, s.SendMsg(&endpoint.Msg{To: s.peer, Buf: long, Context: uint64(i), Flags: f}))
		s.drive(t)
		if e := s.one(t); e.Context != uint64(i) || e.Len != uint64(len(long)) {
			t.Errorf("flags %v: %+v", f, e)
		}
	}
	if n := len(s.sent(t)); n != 3 {
		t.Errorf("%d were sent", n)
	}
}

// TestFence: a fenced post waits for everything before it.
func TestFence(t *testing.T) {
	shmtest.Conforms(t)
	s := alone(t, nil)
	s.kernel.HoldCompletions(true)
	must(t, flagged(s, cq.FlagFence))
	if err := flagged(s, cq.FlagFence); !errors.Is(err, endpoint.ErrFenced) ||
		!errors.Is(err, syscall.EAGAIN) {
		t.Errorf("while one is under way: %v", err)
	}
	must(t, flagged(s, cq.FlagMore))
	s.kernel.Complete(1)
	if err := flagged(s, cq.FlagFence); !errors.Is(err, endpoint.ErrFenced) {
		t.Errorf("while another is under way: %v", err)
	}
	s.kernel.Complete(1)
	must(t, flagged(s, cq.FlagFence))
	if es := s.read(t); len(es) != 2 {
		t.Errorf("%d completions", len(es))
	}
}

// TestSelective: operations complete that ask, errors always do, and counters count all.
func TestSelective(t *testing.T) {
	shmtest.Conforms(t)
	n := shmtest.Have(cq.CreateCounter(cq.Unnamed("sent"), cq.CounterOptions{})).In(t)
	bytes := shmtest.Have(cq.CreateCounter(cq.Unnamed("bytes"),
		cq.CounterOptions{Events: cq.BytesCounter})).In(t)
	s := alone(t, configured(func(c *endpoint.Config) {
		c.Selective = cq.FlagTransmit
		c.Counters = map[*cq.Counter]cq.Flags{n: cq.FlagSend,
			bytes: cq.FlagSend | cq.FlagRecv}
	}))
	if err := n.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a counter that is bound was closed: %v", err)
	}
	send := func(context uint64, f cq.Flags) {
		must(t, s.SendMsg(&endpoint.Msg{To: s.peer, Buf: []byte("abc"), Context: context, Flags: f}))
	}
	send(1, 0)
	send(2, cq.FlagCompletion)
	send(3, cq.FlagTransmitComplete)
	send(4, cq.FlagInjectComplete)
	must(t, s.Inject([]byte("abcd"), s.peer))
	s.kernel.Refuse(1)
	send(5, 0)
	s.drive(t)
	var got []uint64
	for _, e := range s.read(t) {
		got = append(got, e.Context)
	}
	if len(got) != 3 || got[0] != 2 || got[1] != 3 || got[2] != 4 {
		t.Errorf("%v", got)
	}
	if e := s.readErr(t); e.Context != 5 || !errors.Is(&e, syscall.EIO) {
		t.Errorf("%+v", e)
	}
	value, _ := n.Read()
	failed, _ := n.ReadErr()
	size, _ := bytes.Read()
	if value != 5 || failed != 1 || size != 16 {
		t.Errorf("counted %d, %d failed, %d bytes", value, failed, size)
	}
}

// TestInject: it never completes, its errors are entries without a context, and it needs no room.
func TestInject(t *testing.T) {
	shmtest.Conforms(t)
	s := alone(t, func(o *options) { o.queue.Size = 4 })
	for range 20 {
		must(t, s.Inject([]byte("x"), s.peer))
	}
	s.drive(t)
	if es := s.read(t); len(es) != 0 {
		t.Errorf("%+v", es)
	}
	s.kernel.Refuse(1)
	must(t, s.Inject([]byte("y"), s.peer))
	if e := s.readErr(t); e.Flags&cq.FlagNoContext == 0 || !errors.Is(&e, syscall.EIO) {
		t.Errorf("%+v", e)
	}
	if n := len(s.sent(t)); n != 20 {
		t.Errorf("%d were sent", n)
	}
}

// TestOnlyCounters: without Transmit there are no completions, and nothing can ask for one.
func TestOnlyCounters(t *testing.T) {
	s := alone(t, configured(func(c *endpoint.Config) { c.Transmit = nil }))
	if err := s.Send(nil, s.peer, 1); !errors.Is(err, cq.ENoCQ) {
		t.Errorf("send: %v", err)
	}
	must(t, s.Inject(nil, s.peer))
	if n := len(s.sent(t)); n != 1 {
		t.Errorf("%d were sent", n)
	}
}

// TestCredits: a send is refused when its completion would find no room, and not before.
func TestCredits(t *testing.T) {
	shmtest.Conforms(t)
	s := alone(t, func(o *options) { o.queue.Size = 8 })
	for i := range uint64(8) {
		must(t, s.Send(nil, s.peer, i))
	}
	if err := s.Send(nil, s.peer, 8); err != cq.ErrFull || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("a ninth: %v", err)
	}
	if es := s.read(t); len(es) != 8 {
		t.Errorf("%d completions", len(es))
	}
	must(t, s.Send(nil, s.peer, 8))
}

// TestOverrun: with resource management off posts are taken, and the queue is overrun.
func TestOverrun(t *testing.T) {
	shmtest.Conforms(t)
	a, b := newPair(t, func(o *options) {
		o.queue = cq.Options{Size: 8, Overrun: cq.OverrunQueue}
	})
	for i := range uint64(12) {
		must(t, a.Send(nil, a.peer, i))
	}
	b.drive(t)
	for _, s := range []*side{a, b} {
		got := 0
		for {
			var es [4]cq.Entry
			n, err := cq.Read(s.q, es[:])
			if got += n; err != nil {
				if !errors.Is(err, cq.ErrOverrun) {
					t.Errorf("%v", err)
				}
				break
			}
		}
		if got != 8 {
			t.Errorf("%s: %d completions before the overrun", s.name, got)
		}
	}
	// Datagrams go on all the same.
	must(t, a.Inject(nil, a.peer))
	shmtest.Got(b.Progress()).Or(t)
	if s := b.Stats(); s.Overrun < 4 {
		t.Errorf("%+v", s)
	}
}

// TestLongBatch: a batch may be longer than there are frames, if the kernel is quick.
func TestLongBatch(t *testing.T) {
	s := alone(t, nil)
	ms := make([]endpoint.Msg, 100)
	for i := range ms {
		ms[i] = endpoint.Msg{To: s.peer, Flags: cq.FlagMore, Context: uint64(i)}
	}
	n, err := s.SendBatch(ms)
	if n != 100 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	s.Flush()
	if es := s.read(t); len(es) != 100 || es[99].Context != 99 {
		t.Errorf("%d completions", len(es))
	}
}

// TestNoFrame: without a free frame a send is refused, and goes on when the kernel is done.
func TestNoFrame(t *testing.T) {
	shmtest.Conforms(t)
	s := alone(t, nil) // 16 of 64 frames are for sending
	s.kernel.HoldCompletions(true)
	for i := range uint64(16) {
		must(t, s.Send(nil, s.peer, i))
	}
	if err := s.Send(nil, s.peer, 16); err != endpoint.ErrNoFrame || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("a seventeenth: %v", err)
	}
	if _, err := s.Frame(); err != endpoint.ErrNoFrame {
		t.Errorf("a frame: %v", err)
	}
	s.kernel.Complete(1)
	must(t, s.Send(nil, s.peer, 16))
	if n := s.tx.Credits().Len(); n != 16 {
		t.Errorf("%d credits for 16 sends", n)
	}
}

// loop joins the endpoint to itself, without a copy that is kept.
func loop(t testing.TB, s *side) {
	tm := shmtest.Got(packet.NewTemplate(macB, macA, addrB, addrA)).Or(t)
	in := make([]byte, 2048)
	n := shmtest.Got(tm.Build(in, make([]byte, 64))).Or(t)
	s.kernel.OnSend(func([]byte) { s.kernel.Deliver(in[:n]) })
}

// turns sends, drives and reads, and gives frames back.
func (s *side) turns(t testing.TB, send func() error) {
	must(t, send())
	shmtest.Got(s.Progress()).Or(t)
	for {
		es, err := s.q.Peek(64)
		if errors.Is(err, cq.ErrWouldBlock) {
			return
		}
		must(t, err)
		must(t, s.Release(es...))
		must(t, s.q.Release(len(es)))
	}
}

// TestNoAllocation: whatever is sent and received per packet, nothing is allocated, but by the race
// detector.
func TestNoAllocation(t *testing.T) {
	shmtest.Conforms(t)
	for name, change := range map[string]func(c *endpoint.Config){
		"plain":     func(*endpoint.Config) {},
		"shared":    func(c *endpoint.Config) { c.Shared = true },
		"selective": func(c *endpoint.Config) { c.Selective = cq.FlagTransmit },
		"damaged":   func(c *endpoint.Config) { c.WrongChecksums = true },
		"posted":    func(c *endpoint.Config) { c.Posted = true },
	} {
		t.Run(name, func(t *testing.T) {
			posted := false
			s := alone(t, configured(func(c *endpoint.Config) {
				change(c)
				posted = c.Posted
			}))
			loop(t, s)
			buf := make([]byte, 2048)
			iov := [][]byte{buf[:10]}
			receive := func(n int) error {
				for i := 0; posted && i < n; i++ {
					m := endpoint.Msg{Buf: buf[10:], Iov: iov[:i%2]}
					if err := s.RecvMsg(&m); err != nil {
						return err
					}
				}
				return nil
			}
			for what, send := range waysToSend(s, posted) {
				once := func() {
					must(t, receive(8))
					s.turns(t, send)
					for s.Cancel(0) == nil {
						var e cq.ErrorEntry
						for s.q.ReadErr(&e) != nil {
							s.turns(t, func() error { return nil })
						}
					}
				}
				for range 20 {
					once()
				}
				if n := testing.AllocsPerRun(200, once); n != 0 && !shmtest.Race {
					t.Errorf("%s: %v allocations", what, n)
				}
			}
		})
	}
}

// waysToSend are all calls that send to the endpoint itself. One with posted buffers lends no frame
// that could be forwarded.
func waysToSend(s *side, posted bool) map[string]func() error {
	payload := make([]byte, 64)
	iov := [][]byte{payload[:10], payload[10:]}
	ms := make([]endpoint.Msg, 8)
	for i := range ms {
		ms[i] = endpoint.Msg{To: s.peer, Buf: payload, Context: uint64(i)}
	}
	ways := map[string]func() error{
		"send": func() error { return s.Send(payload, s.peer, 1) },
		"send to": func() error {
			return s.SendMsg(&endpoint.Msg{Buf: payload, Dest: addrB, Context: 1})
		},
		"scatter": func() error {
			return s.SendMsg(&endpoint.Msg{To: s.peer, Iov: iov, Flags: cq.FlagCompletion})
		},
		"inject complete": func() error {
			return s.SendMsg(&endpoint.Msg{To: s.peer, Flags: cq.FlagInjectComplete})
		},
		"inject": func() error { return s.Inject(payload, s.peer) },
		"batch":  func() error { _, err := s.SendBatch(ms); return err },
		"frame": func() error {
			f, err := s.Frame()
			if err != nil {
				return err
			}
			return s.SendFrame(f, copy(f.Bytes(), payload), &endpoint.Msg{To: s.peer, Context: 1})
		},
	}
	if !posted {
		ways["forward"] = func() error {
			if err := s.Inject(payload, s.peer); err != nil {
				return err
			}
			if _, err := s.Progress(); err != nil {
				return err
			}
			es, err := s.q.Peek(1)
			if err != nil {
				return err
			}
			if err := s.Forward(&es[0], 9, &ms[0]); err != nil {
				return err
			}
			return s.q.Release(1)
		}
	}
	return ways
}

// BenchmarkReceive is what a packet of 64 bytes costs from the receive ring to the return of its
// frame, in batches of 64, by a kernel that moves descriptors and no more.
func BenchmarkReceive(b *testing.B) {
	s := newSide(b, "bench", options{self: addrA, peer: addrB, mac: macA, next: macB})
	tm := shmtest.Got(packet.NewTemplate(macB, macA, addrB, addrA)).Or(b)
	u, n := s.Socket().UMEM(), 0
	const start = xdp.RecordBytes + xskernel.HeadroomBytes
	for at := start; at < len(u.Region().Bytes()); at += int(u.Geometry().ChunkBytes) {
		n = shmtest.Got(tm.Build(u.Region().Bytes()[at:], make([]byte, 22))).Or(b)
	}
	var took time.Duration
	var es [64]cq.Entry
	done := 0
	for done < b.N {
		for addr, ok := s.kernel.Fill.Pop(); ok; addr, ok = s.kernel.Fill.Pop() {
			s.kernel.Rx.Push(xskernel.Desc{Addr: addr + start, Len: uint32(n)})
		}
		began := time.Now()
		for left := s.Socket().Pending(1024); left > 0; {
			_, err := s.Progress()
			k, err2 := cq.Read(s.q, es[:])
			if err = errors.Join(err, err2, s.Release(es[:k]...)); err != nil {
				b.Fatal(err)
			}
			left -= k
			done += k
		}
		took += time.Since(began)
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(done), "ns/packet")
}
