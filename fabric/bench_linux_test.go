package fabric_test

import (
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
