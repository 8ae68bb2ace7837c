//go:build (amd64 || arm64) && !race

package ring

//go:noescape
func storeRelease(p *Index, v uint64)
