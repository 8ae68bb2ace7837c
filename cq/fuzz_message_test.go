package cq

import (
	"bytes"
	"strings"
	"testing"

	"github.com/shmring/shmring/shm"
)

// TestMessageBytes: programs of before say the same.
func TestMessageBytes(t *testing.T) {
	m := message{step: stepLane, status: 2, fds: 1 << fdLane, row: 3, generation: 4,
		queue: shm.UUID{0: 5, 15: 6}, trust: CrossUser}
	want := "shmrdv\r\n\x01\x00\x03\x00\x02\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00" +
		"\x04\x00\x00\x00\x00\x00\x00\x00\x05" + strings.Repeat("\x00", 14) + "\x06\x01" +
		strings.Repeat("\x00", 15)
	if got := string(m.encode()); got != want {
		t.Errorf("%q", got)
	}
}

// FuzzMessage: of a rendezvous message without its descriptors, at a rate that processes which meet
// do not reach: what is taken is what was sent, to the last byte, and every reason has an error.
func FuzzMessage(f *testing.F) {
	for s := stepAsk; s <= stepDone; s++ {
		for _, m := range []message{{step: s}, {step: s, status: 1}, {step: s, trust: CrossUser, row: 3,
			generation: 1 << 40, fds: stepFDs[s], queue: shm.NewUUID()}} {
			f.Add(m.encode())
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, err := rendezvous.Header(b); err != nil {
			return
		}
		m, err := decodeMessage(b)
		if err != nil {
			return
		}
		if !bytes.Equal(m.encode(), b) {
			t.Errorf("%x was taken for %+v", b, m)
		}
		if err := statusError(m.status); (err == nil) != (m.status == 0) {
			t.Errorf("status %d: %v", m.status, err)
		}
	})
}
