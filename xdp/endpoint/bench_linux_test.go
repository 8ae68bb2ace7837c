package endpoint_test

import (
	"errors"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

const benchBatch = 64

func benchSide(b *testing.B, change func(c *endpoint.Config)) *side {
	return alone(b, func(o *options) {
		o.umem = xdp.UMEMOptions{Frames: 1024}
		o.config = change
	})
}

// BenchmarkDrain is what this process pays for a packet that waits in the receive ring: taking it,
// its completion, reading that, and giving the frame back. The simulated kernel's part is not
// counted.
func BenchmarkDrain(b *testing.B) {
	s := benchSide(b, nil)
	tm, err := packet.NewTemplate(macB, macA, addrB, addrA)
	must(b, err)
	in := make([]byte, 128)
	n, err := tm.Build(in, make([]byte, 22))
	must(b, err)
	var spent time.Duration
	rounds := 0
	for b.Loop() {
		for range benchBatch {
			s.kernel.Deliver(in[:n])
		}
		began := time.Now()
		_, err1 := s.Progress()
		es, err2 := s.q.Peek(benchBatch)
		err3 := s.ReleaseBatch(es)
		err4 := s.q.Release(len(es))
		spent += time.Since(began)
		if err := errors.Join(err1, err2, err3, err4); err != nil || len(es) != benchBatch {
			b.Fatal(len(es), err)
		}
		rounds++
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(rounds*benchBatch), "ns/packet")
}

// BenchmarkSend is what it pays for a packet to be sent, from the post to the completion. The
// simulated kernel does little, and that is counted.
func BenchmarkSend(b *testing.B) {
	for name, batch := range map[string]int{"1": 1, "1+progress": 1, "64": benchBatch} {
		b.Run(name, func(b *testing.B) {
			drive := name == "1+progress"
			s := benchSide(b, nil)
			s.kernel.OnSend(func([]byte) {})
			ms := make([]endpoint.Msg, batch)
			for i := range ms {
				ms[i] = endpoint.Msg{To: s.peer, Buf: make([]byte, 22)}
			}
			rounds := 0
			began := time.Now()
			for b.Loop() {
				n, err1 := s.SendBatch(ms)
				if drive && err1 == nil {
					_, err1 = s.Progress()
				}
				es, err2 := s.q.Peek(n)
				err3 := s.q.Release(len(es))
				if err1 != nil || err2 != nil || err3 != nil {
					b.Fatal(err1, err2, err3)
				}
				rounds++
			}
			spent := time.Since(began)
			b.ReportMetric(float64(spent.Nanoseconds())/float64(rounds*batch), "ns/packet")
		})
	}
}
