//go:build !linux

package xdp

// Probe needs Linux.
func Probe(ifname string) (*ProbeReport, error) {
	return nil, &Error{Pkg: pkg, Op: "probe", Name: ifname, Err: errSystem}
}
