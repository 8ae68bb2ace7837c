//go:build !linux

package udp

import (
	"context"
	"errors"

	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/device"
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
