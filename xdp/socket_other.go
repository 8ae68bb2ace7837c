//go:build !linux

package xdp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/shmring/shmring/shm"
)

// errSystem wraps errors.ErrUnsupported.
var errSystem = fmt.Errorf("AF_XDP on %s: %w", runtime.GOOS, errors.ErrUnsupported)

// Socket is an AF_XDP socket. It exists on Linux only.
type Socket struct{ core }

// Open needs Linux.
func Open(ifname string, _ uint32, _ *UMEM, _ Options) (*Socket, error) {
	return nil, &shm.Error{Pkg: pkg, Op: "open socket", Name: ifname, Err: errSystem}
}

// OpenContext needs Linux.
func OpenContext(_ context.Context, ifname string, queue uint32, u *UMEM, o Options) (*Socket,
	error) {
	return Open(ifname, queue, u, o)
}

// OpenShared needs Linux.
func OpenShared(*Socket, Options) (*Socket, error) {
	return nil, &shm.Error{Pkg: pkg, Op: "share queue", Err: errSystem}
}

// Address returns no address.
func (*Socket) Address() netip.Addr { return netip.Addr{} }

// Granted says nothing.
func (*Socket) Granted() Granted { return Granted{} }

// Register needs Linux.
func (*Socket) Register(*Program, uint32) error { return errSystem }

// Kick needs Linux.
func (*Socket) Kick() (unsent int, err error) { return 0, errSystem }

// WakeFill needs Linux.
func (*Socket) WakeFill() error { return errSystem }

// Check needs Linux.
func (*Socket) Check() error { return errSystem }

// FD returns no descriptor.
func (*Socket) FD() int { return -1 }

// Queue returns the number of the queue.
func (*Socket) Queue() uint32 { return 0 }

// Interface returns name and index of the interface.
func (*Socket) Interface() (name string, index int) { return "", 0 }

// UMEM returns the memory of the frames.
func (*Socket) UMEM() *UMEM { return nil }

// Mode is the mode that was granted.
func (*Socket) Mode() BindMode { return BindAuto }

// SyscallStats counts the system calls made for this socket.
func (*Socket) SyscallStats() SyscallStats { return SyscallStats{} }

// KernelStats needs Linux.
func (*Socket) KernelStats() (KernelStats, error) { return KernelStats{}, errSystem }

// Close does nothing.
func (*Socket) Close() error { return nil }
