package demo

import "testing"

func TestPayload(t *testing.T) {
	b := make([]byte, payloadMaxBytes)
	lengths := map[int]bool{}
	for seq := range uint64(2000) {
		n := makePayload(b, seq)
		lengths[n] = true
		if got, ok := checkPayload(b[:n]); !ok || got != seq {
			t.Fatalf("payload %d of %d bytes read as %d, %v", seq, n, got, ok)
		}
	}
	if len(lengths) < 500 {
		t.Errorf("only %d different lengths", len(lengths))
	}
}

// TestEveryBitCounts flips each bit of a payload.
func TestEveryBitCounts(t *testing.T) {
	b := make([]byte, payloadMaxBytes)
	n := makePayload(b, 42)
	for i := range n * 8 {
		b[i/8] ^= 1 << (i % 8)
		if _, ok := checkPayload(b[:n]); ok {
			t.Fatalf("bit %d of byte %d does not matter", i%8, i/8)
		}
		b[i/8] ^= 1 << (i % 8)
	}
	for _, k := range []int{0, payloadMinBytes - 1, n - 1, n + 1} {
		if _, ok := checkPayload(b[:k]); ok {
			t.Errorf("%d bytes of %d pass", k, n)
		}
	}
}

func TestTally(t *testing.T) {
	b := make([]byte, payloadMaxBytes)
	tl := newTally(10)
	for _, seq := range []uint64{0, 9, 3, 3, 10} {
		tl.add(b[:makePayload(b, seq)])
	}
	b[20] ^= 1
	tl.add(b[:payloadMinBytes])
	if tl.Arrived != 3 || tl.Duplicate != 1 || tl.Unexpected != 1 || tl.Corrupt != 1 {
		t.Errorf("%+v", tl)
	}
}
