//go:build !linux

package spin

import (
	"runtime"
	"time"
)

var started = time.Now()

// Now returns a monotonic clock in nanoseconds.
func Now() int64 { return int64(time.Since(started)) }

// Yield lets other goroutines run.
func Yield(uint) { runtime.Gosched() }
