//go:build !linux

package xdp

import (
	"github.com/shmring/shmring/shm"

	"github.com/shmring/shmring/internal/xskernel"
)

// Simulate needs Linux.
func Simulate(_ *UMEM, o SimOptions) (*Socket, *xskernel.Kernel, error) {
	return nil, nil, &shm.Error{Pkg: pkg, Op: "simulate socket", Name: o.Name, Err: errSystem}
}
