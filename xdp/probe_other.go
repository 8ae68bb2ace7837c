//go:build !linux

package xdp

// Probe needs Linux.
func Probe(ifname string) (*ProbeReport, error) {
	return nil, &Error{Pkg: pkg, Op: "probe", Name: ifname, Err: errSystem}
}

// AttachedProgram needs Linux.
func AttachedProgram(ifname string) (ProgramInfo, error) {
	return ProgramInfo{}, &Error{Pkg: pkg, Op: "look for a program", Name: ifname, Err: errSystem}
}
