package cq

import (
	"bytes"
	"testing"

	"github.com/shmring/shmring/shm"
)

// FuzzMessage: of a rendezvous message without its descriptors, at a rate that processes which meet
// do not reach: what is taken is what was sent, to the last byte, and every reason has an error.
func FuzzMessage(f *testing.F) {
	for s := stepAsk; s <= stepDone; s++ {
		for _, m := range []message{{step: s}, {step: s, status: 1}, {step: s, trust: CrossUser, row: 3,
			generation: 1 << 40, fds: stepFDs[s], queue: shm.NewUUID()}} {
			f.Add(m.encode(), uint16(s), 2)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, want uint16, got int) {
		s := stepAsk + step(want)%(stepDone-stepAsk+1)
		m, err := decodeMessage(b, s, got)
		if err != nil {
			return
		}
		if !bytes.Equal(m.encode(), b) || m.step != s {
			t.Errorf("%x was taken for %+v", b, m)
		}
		if err := statusError(m.status); (err == nil) != (m.status == 0) {
			t.Errorf("status %d: %v", m.status, err)
		}
	})
}
