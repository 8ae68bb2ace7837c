package xdptest

import (
	"runtime"
	"testing"
	"time"
)

// FewerGoroutines waits until there are no more goroutines than there were: one that has said its
// last word, as that of Do has, may not have ended yet.
func FewerGoroutines(t testing.TB, before int, most time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(most); ; time.Sleep(time.Millisecond) {
		n := runtime.NumGoroutine()
		if n <= before {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", n, before)
		}
	}
}
