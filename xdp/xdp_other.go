//go:build !linux

package xdp

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/shmring/shmring/shm"
)

// errSystem wraps errors.ErrUnsupported.
var errSystem = fmt.Errorf("AF_XDP on %s: %w", runtime.GOOS, errors.ErrUnsupported)

// Socket is an AF_XDP socket. It exists on Linux only.
type Socket struct{ core }

// Open needs Linux.
func Open(_ context.Context, ifname string, _ uint32, _ *UMEM, _ Options) (*Socket, error) {
	return nil, &shm.Error{Pkg: pkg, Op: "open socket", Name: ifname, Err: errSystem}
}

// OpenShared needs Linux.
func OpenShared(*Socket, Options) (*Socket, error) {
	return nil, &shm.Error{Pkg: pkg, Op: "share queue", Err: errSystem}
}

// Info says nothing.
func (*Socket) Info() SocketInfo { return SocketInfo{} }

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

// UMEM returns the memory of the frames.
func (*Socket) UMEM() *UMEM { return nil }

// SyscallStats counts the system calls made for this socket.
func (*Socket) SyscallStats() SyscallStats { return SyscallStats{} }

// KernelStats needs Linux.
func (*Socket) KernelStats() (KernelStats, error) { return KernelStats{}, errSystem }

// Close does nothing.
func (*Socket) Close() error { return nil }

// Program is the steering program on one interface. It exists on Linux only.
type Program struct{}

// Attach needs Linux.
func Attach(ifname string, _ ProgramOptions) (*Program, error) {
	return nil, &shm.Error{Pkg: pkg, Op: "attach program", Name: ifname, Err: errSystem}
}

// Info says nothing.
func (*Program) Info() ProgramInfo { return ProgramInfo{Refused: errSystem} }

// AddRule needs Linux.
func (*Program) AddRule(Rule, Target) (RuleID, error) { return 0, errSystem }

// RemoveRule needs Linux.
func (*Program) RemoveRule(RuleID) error { return errSystem }

// Rules needs Linux.
func (*Program) Rules() ([]RuleStatus, error) { return nil, errSystem }

// SetLocal needs Linux.
func (*Program) SetLocal(Local) error { return errSystem }

// Counters needs Linux.
func (*Program) Counters() (Counters, error) { return Counters{}, errSystem }

// Close does nothing.
func (*Program) Close() error { return nil }

// Probe needs Linux.
func Probe(ifname string) (*ProbeReport, error) {
	return nil, &shm.Error{Pkg: pkg, Op: "probe", Name: ifname, Err: errSystem}
}
