package fabric_test

import (
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/shmtest"
)

// BenchmarkMessage is a message of 8 bytes, from its send to both completions, in one goroutine:
// what programs do at both ends, with no line in motion.
func BenchmarkMessage(b *testing.B) {
	from, to := opened(b, "a", fabric.Options{}), opened(b, "b", fabric.Options{})
	addr := shmtest.Got(from.Resolve("b")).Or(b)
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
