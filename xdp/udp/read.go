package udp

import (
	"net"
	"net/netip"
	"syscall"
)

// Read copies one datagram to b, of a connected socket one of its peer. What does not fit is lost.
func (c *Conn) Read(b []byte) (int, error) {
	if len(b) == 0 && !isClosed(c.done) {
		return 0, nil // as package net has it
	}
	r, err := c.receive(b)
	return r.n, c.readError("read", err)
}

// ReadFrom copies one datagram to b and returns its sender, a *[net.UDPAddr]. What does not fit is
// lost.
func (c *Conn) ReadFrom(b []byte) (int, net.Addr, error) {
	r, err := c.receive(b)
	if err != nil {
		return 0, nil, c.readError("recvfrom", err)
	}
	return r.n, net.UDPAddrFromAddrPort(r.from), nil
}

// ReadFromUDP is ReadFrom with the type of the address.
func (c *Conn) ReadFromUDP(b []byte) (int, *net.UDPAddr, error) {
	r, err := c.receive(b)
	if err != nil {
		return 0, nil, c.readError("recvfrom", err)
	}
	return r.n, net.UDPAddrFromAddrPort(r.from), nil
}

// ReadFromUDPAddrPort is ReadFrom without an allocation. IPv4 addresses are not mapped to IPv6.
func (c *Conn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	r, err := c.receive(b)
	return r.n, r.from, c.readError("recvfrom", err)
}

// ReadMsgUDP is ReadFrom that also says, by the flag MSG_TRUNC, if the datagram did not fit. There
// is never control data.
func (c *Conn) ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error) {
	n, oobn, flags, from, err := c.ReadMsgUDPAddrPort(b, oob)
	if from.IsValid() {
		addr = net.UDPAddrFromAddrPort(from)
	}
	return n, oobn, flags, addr, err
}

// ReadMsgUDPAddrPort is ReadMsgUDP without an allocation.
func (c *Conn) ReadMsgUDPAddrPort(b, _ []byte) (n, oobn, flags int, addr netip.AddrPort,
	err error) {
	r, err := c.receive(b)
	if r.truncated {
		flags = syscall.MSG_TRUNC
	}
	return r.n, 0, flags, r.from, c.readError("recvmsg", err)
}
