//go:build !linux

package soak

// faults are for Linux.
type faults struct{}

func startFaults(uint64, func(string)) *faults { return &faults{} }

func (*faults) stop() Faults { return Faults{} }
