//go:build !amd64 || race

package ring

// storeRelease is one instruction on arm64, STLR, which is a release store: what it has beyond that,
// being ordered before later LDARs, costs less there than a call of assembly that does without.
func storeRelease(p *Index, v uint64) { p.Store(v) }
