package device

import "net/netip"

// InjectFrom is InjectTo from another port of this endpoint.
func (e *Endpoint) InjectFrom(payload []byte, from uint16, to netip.AddrPort) error {
	return e.send(payload, from, to, 0, injectFlags)
}
