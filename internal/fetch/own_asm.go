//go:build amd64 || arm64

package fetch

import "sync/atomic"

//go:noescape
func own(p *atomic.Uint64)
