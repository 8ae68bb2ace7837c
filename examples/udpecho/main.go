// Command udpecho answers datagrams by AF_XDP, beside the kernel's stack. It needs root.
//
//	udpecho eth0 192.0.2.1:7   until it is interrupted
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"github.com/shmring/shmring/xdp/udp"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: udpecho INTERFACE ADDRESS:PORT")
	}
	local, err := netip.ParseAddrPort(os.Args[2])
	check(err)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	conn, err := udp.Listen(ctx, os.Args[1], local, udp.Options{})
	check(err)
	defer conn.Close()
	context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) }) // ends the read below
	fmt.Println("listening on", conn.LocalAddr())
	var socket net.PacketConn = conn // for quic.Listen, dns.Server and all others that take one
	buf := make([]byte, 2048)
	for {
		n, from, err := socket.ReadFrom(buf)
		if ctx.Err() != nil {
			return
		}
		check(err)
		_, err = socket.WriteTo(buf[:n], from)
		check(err)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
