//go:build !linux

package spin

import (
	"testing"
)

func kernelNow(*testing.T) int64 { return Now() }
