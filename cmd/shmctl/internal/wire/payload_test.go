package wire

import "testing"

func TestPayload(t *testing.T) {
	b := make([]byte, PayloadMaxBytes)
	lengths := map[int]bool{}
	for seq := range uint64(2000) {
		n := Put(b, seq)
		lengths[n] = true
		if got, ok := Check(b[:n]); !ok || got != seq {
			t.Fatalf("payload %d of %d bytes read as %d, %v", seq, n, got, ok)
		}
	}
	if len(lengths) < 500 {
		t.Errorf("only %d different lengths", len(lengths))
	}
}

// TestEveryBitCounts flips each bit of a payload.
func TestEveryBitCounts(t *testing.T) {
	b := make([]byte, PayloadMaxBytes)
	n := Put(b, 42)
	for i := range n * 8 {
		b[i/8] ^= 1 << (i % 8)
		if _, ok := Check(b[:n]); ok {
			t.Fatalf("bit %d of byte %d does not matter", i%8, i/8)
		}
		b[i/8] ^= 1 << (i % 8)
	}
	for _, k := range []int{0, payloadMinBytes - 1, n - 1, n + 1} {
		if _, ok := Check(b[:k]); ok {
			t.Errorf("%d bytes of %d pass", k, n)
		}
	}
}
