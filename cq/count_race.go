//go:build race

package cq

import "sync/atomic"

func countLoad(p *atomic.Uint64) uint64     { return p.Load() }
func countStore(p *atomic.Uint64, v uint64) { p.Store(v) }
