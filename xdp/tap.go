package xdp

import "github.com/shmring/shmring/internal/xskernel"

// Tap sees a copy of what a socket receives and sends. It is called by whoever drives the socket,
// and must neither block nor keep the bytes.
type Tap interface {
	// Packet is a packet as it left the receive ring, or as it is given to the kernel to be sent;
	// or the part of one that lies in one frame, with more if others follow.
	Packet(sent bool, b []byte, more bool)
	// Flush ends a round: what was seen may be published.
	Flush()
}

// SetTap makes t see all packets from now on; nil ends that. It is one of the calls that only one
// goroutine makes. Without a tap the price is a look at a pointer for each batch.
func (s *Socket) SetTap(t Tap) { s.core.tap = t }

func (c *core) tapReceived(packets []Received) {
	for _, r := range packets {
		c.tap.Packet(false, c.Packet(r), r.More)
	}
	if len(packets) > 0 {
		c.tap.Flush()
	}
}

// tapSent shows what is about to be published, which nobody else can write any more.
func (c *core) tapSent() {
	at := c.tx.prod.Load()
	for ; at != c.tx.next; at++ {
		d := &c.tx.slots[at&c.tx.mask]
		c.tap.Packet(true, c.mem[d.Addr:d.Addr+uint64(d.Len)], d.Options&xskernel.PacketContinues != 0)
	}
	c.tap.Flush()
}
