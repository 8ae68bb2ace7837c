package device_test

import (
	"context"
	"fmt"
	"log"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/xdp/device"
)

// A program without any privilege, beside "shmctl serve --dev eth0 --allow uid:1000".
func ExampleDial() {
	ctx := context.Background()
	e, err := device.Dial(ctx, "/run/shmring/eth0.sock", device.Request{Ports: []uint16{5000}})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	entries := make([]cq.Entry, 64)
	for {
		n, err := cq.ReadContext(ctx, e.Queue(), entries, cq.ReadOptions{})
		if err != nil {
			log.Fatal(err)
		}
		for i := range entries[:n] {
			packet, err := e.View(&entries[i]) // in place, read-only
			if err != nil {
				continue
			}
			fmt.Printf("%d bytes\n", len(packet.Bytes()))
			packet.Release()
		}
		if err := e.Release(entries[:n]...); err != nil {
			log.Print(err)
		}
	}
}
