package fabric_test

import (
	"fmt"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
)

// BenchmarkMessage is a message of 8 bytes, from its send to both completions, in one goroutine.
func BenchmarkMessage(b *testing.B) {
	from, to := opened(b, "a", fabric.Options{}), opened(b, "b", fabric.Options{})
	addr, err := from.Resolve("b")
	noError(b, err)
	var buf, payload [8]byte
	var dst [4]cq.Entry
	b.ReportAllocs()
	for b.Loop() {
		_ = to.Recv(buf[:], 1)
		_ = from.Send(payload[:], addr, 2)
		_, _ = cq.Read(to.q, dst[:])
		_, _ = cq.Read(from.q, dst[:])
	}
}

// BenchmarkRoundTrip is a ping and its echo by another process. Both look for as long as queues do
// by default before they sleep.
func BenchmarkRoundTrip(b *testing.B) {
	e := opened(b, "main", fabric.Options{})
	c := start(b, "echo")
	c.says(b, "ready")
	to, err := e.Resolve("echo")
	noError(b, err)
	var buf, payload [8]byte
	var dst [4]cq.Entry
	b.ReportAllocs()
	for b.Loop() {
		noError(b, e.Recv(buf[:], 1))
		noError(b, e.Inject(payload[:], to))
		_, err := cq.ReadContext(b.Context(), e.q, dst[:], cq.ReadOptions{})
		noError(b, err)
	}
	c.ends(b)
}

// BenchmarkLong is a message and its echo by another process, of lengths that take a chunk and
// many. The echo of what comes from a pool comes from a pool, and is copied once there; both are
// received in place.
func BenchmarkLong(b *testing.B) {
	for _, n := range []int{4 << 10, 1 << 20} {
		for _, peer := range []string{"mirror", "lender"} {
			b.Run(fmt.Sprint(n, "/", peer), func(b *testing.B) {
				e := opened(b, "a", fabric.Options{Pool: n})
				c := start(b, peer)
				c.says(b, "ready")
				to, err := e.Resolve(peer)
				noError(b, err)
				payload := allocated(b, e, n)
				if peer == "mirror" {
					payload = pattern(n)
				}
				buf := fabric.Msg{Buf: make([]byte, n), Addr: fabric.Anybody}
				if peer == "lender" {
					buf.Buf, buf.Flags = nil, cq.FlagFrame
				}
				b.SetBytes(int64(2 * n))
				for b.Loop() {
					noError(b, e.RecvMsg(&buf))
					noError(b, e.Send(payload, to, 2))
					noError(b, e.Release(completes(b, e), completes(b, e)))
				}
				c.ends(b)
			})
		}
	}
}
