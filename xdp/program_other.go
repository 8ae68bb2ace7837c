//go:build !linux

package xdp

import "github.com/shmring/shmring/shm"

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

// SetTarget needs Linux.
func (*Program) SetTarget(RuleID, Target) error { return errSystem }

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
