//go:build !linux

package xdp

import "github.com/shmring/shmring/shm"

// Probe needs Linux.
func Probe(ifname string) (*ProbeReport, error) {
	return nil, &shm.Error{Pkg: pkg, Op: "probe", Name: ifname, Err: errSystem}
}
