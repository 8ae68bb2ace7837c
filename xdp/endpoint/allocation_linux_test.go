package endpoint_test

import (
	"errors"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

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
