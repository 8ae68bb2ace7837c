//go:build !linux

package xdp

// Simulate needs Linux.
func Simulate(_ *UMEM, o SimOptions) (*Socket, *Kernel, error) {
	return nil, nil, &Error{Pkg: pkg, Op: "simulate socket", Name: o.Name, Err: errSystem}
}
