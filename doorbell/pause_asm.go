//go:build amd64 || arm64

package doorbell

//go:noescape
func pause(n uint32)
