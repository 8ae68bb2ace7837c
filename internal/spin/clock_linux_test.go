package spin

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
)

func kernelNow(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	shmtest.Must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts))
	return ts.Nano()
}
