//go:build !linux

package udp

import (
	"context"
	"errors"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/device"
	"github.com/shmring/shmring/xdp/endpoint"
)

// Open needs Linux.
func Open(_ context.Context, ifname string, _ Options) (*Stack, error) {
	return nil, &shm.Error{Pkg: pkg, Op: "open", Name: ifname, Err: errors.ErrUnsupported}
}

// OpenDevice needs Linux.
func OpenDevice(_ context.Context, path string, _ device.Request, _ StackOptions) (*Stack,
	error) {
	return nil, &shm.Error{Pkg: pkg, Op: "open", Name: path, Err: errors.ErrUnsupported}
}

// newOnEndpoint needs Linux.
func newOnEndpoint(*endpoint.Endpoint, *cq.Queue) (backend, error) {
	return nil, &shm.Error{Pkg: pkg, Op: "use endpoint", Err: errors.ErrUnsupported}
}
