package torture

import (
	"testing"
	"time"
)

// TestLifetime goes on, and by little at a time.
func TestLifetime(t *testing.T) {
	real := time.Now()
	begin := lifetime()
	for lifetime()-begin < 5*livedMost {
		nap(time.Millisecond)
	}
	is := lifetime() - begin
	if passed := time.Since(real); is > passed+livedMost { // one look may have begun before
		t.Errorf("%v passed, and it is %v", passed, is)
	}
}
