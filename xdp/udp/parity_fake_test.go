package udp_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/shmring/shmring/xdp/udp"
)

// loopback is two hosts that are one: kernel sockets on two addresses of it.
type loopback struct{}

func (loopback) addr(host int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + host)})
}

func (l loopback) listen(t *testing.T, _ int, local netip.AddrPort) socket {
	c, err := l.open(local)
	must(t, err)
	return c
}

func (loopback) open(local netip.AddrPort) (socket, error) {
	network := "udp"
	if local.Addr().IsUnspecified() {
		network = "udp4" // else package net makes it one of IPv6
	}
	return net.ListenUDP(network, net.UDPAddrFromAddrPort(local))
}

func (loopback) dial(t *testing.T, _ int, local, remote netip.AddrPort) socket {
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(local), net.UDPAddrFromAddrPort(remote))
	must(t, err)
	return c
}

// stacks is two hosts of this package.
type stacks [2]*udp.Stack

func (stacks) addr(host int) netip.Addr { return [2]netip.Addr{addrA, addrB}[host] }

func (s stacks) listen(t *testing.T, host int, local netip.AddrPort) socket {
	c, err := s[host].Listen(local)
	must(t, err)
	return c
}

func (s stacks) dial(t *testing.T, host int, local, remote netip.AddrPort) socket {
	c, err := s[host].Dial(local, remote)
	must(t, err)
	return c
}

// TestParityFake compares what needs no device with sockets of the kernel.
func TestParityFake(t *testing.T) {
	t.Parallel()
	if c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)}); err != nil {
		t.Skip("no second loopback address: ", err) // darwin
	} else {
		c.Close()
	}
	a, b, _, _ := newStacks(t, udp.StackOptions{}, 512)
	runParity(t, loopback{}, stacks{a, b})
}
