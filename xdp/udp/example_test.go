package udp_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/netip"

	"github.com/shmring/shmring/xdp/device"
	"github.com/shmring/shmring/xdp/udp"
)

// An echo server beside the kernel's stack. It needs an interface, and root.
func ExampleListen() {
	local := netip.MustParseAddrPort("192.0.2.1:7")
	conn, err := udp.Listen(context.Background(), "eth0", local, udp.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	var socket net.PacketConn = conn // for quic.Listen, dns.Server and all others that take one
	buf := make([]byte, 2048)
	for {
		n, from, err := socket.ReadFrom(buf)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := socket.WriteTo(buf[:n], from); err != nil {
			log.Fatal(err)
		}
	}
}

// Many sockets on one interface: they share its queues, and the program in the kernel.
func ExampleStack() {
	s, err := udp.Open(context.Background(), "eth0", udp.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	server, err := s.Listen(netip.MustParseAddrPort("0.0.0.0:4433"))
	if err != nil {
		log.Fatal(err)
	}
	client, err := s.Dial(netip.AddrPort{}, netip.MustParseAddrPort("192.0.2.53:53"))
	if err != nil {
		log.Fatal(err)
	}
	var _ net.PacketConn = server
	var _ net.Conn = client
	fmt.Println(server.LocalAddr(), client.RemoteAddr())
}

// The same without privilege, where "shmctl serve --dev eth0" has the interface.
func ExampleOpenDevice() {
	s, err := udp.OpenDevice(context.Background(), "/run/shmring/eth0", device.Request{},
		udp.StackOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	c, err := s.Listen(netip.MustParseAddrPort("0.0.0.0:4433"))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	fmt.Println(c.LocalAddr())
}
