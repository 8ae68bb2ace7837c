//go:build !amd64 || race

package xdp

import "sync/atomic"

// storeRelease is one instruction on arm64.
func storeRelease(p *atomic.Uint32, v uint32) { p.Store(v) }
