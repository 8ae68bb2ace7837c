package fetch

import (
	"bytes"
	"testing"
)

// Copy moves what copy would, and nothing beside it, wherever both begin.
func TestCopy(t *testing.T) {
	from, to, want := make([]byte, 40<<10), make([]byte, 40<<10), make([]byte, 40<<10)
	for i := range from {
		from[i] = byte(i*7 + i>>8)
	}
	for _, n := range []int{0, 1, 64, 65, 4095, 4096, 4097, 32 << 10} {
		for _, at := range []int{0, 1, 8, 63, 4080} {
			clear(to)
			clear(want)
			k := copy(want[at:at+n], from[64-at%64:])
			if got := Copy(to[at:at+n], from[64-at%64:]); got != k || !bytes.Equal(to, want) {
				t.Errorf("%d bytes to %d: %d are copied, or others are changed", n, at, got)
			}
			if got := Copy(to[at:], from[:n]); got != n {
				t.Errorf("%d bytes of %d are copied to more room", got, n)
			}
		}
	}
}
