package udp_test

import (
	"context"
	"log"
	"net"
	"net/netip"

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
