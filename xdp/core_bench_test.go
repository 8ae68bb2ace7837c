package xdp

import "testing"

// What a packet costs in this package, without the kernel, whose side is played by loops that move
// indices and addresses and no more.

const benchBatch = 64

func newBenchCore() (*core, *fakeKernel) {
	return newFake(fakeConfig{frames: 2048, rxFrames: 1536, entries: 1024})
}

// loop gives every frame of the fill ring back with a packet.
func (k *fakeKernel) loop() {
	fill, rx := k.Kernel.fill, k.Kernel.rx
	cons, prod := fill.consWord.Load(), rx.prodWord.Load()
	for end := fill.prodWord.Load(); cons != end && prod-rx.consWord.Load() <= rx.mask(); cons++ {
		addr := fill.slots[cons&fill.mask()]
		rx.slots[prod&rx.mask()] = Desc{Addr: addr + 320, Len: 64}
		prod++
	}
	fill.consWord.Store(cons)
	rx.prodWord.Store(prod)
}

// done completes all that is in the transmit ring.
func (k *fakeKernel) done() {
	tx, comp := k.Kernel.tx, k.Kernel.comp
	cons, prod := tx.consWord.Load(), comp.prodWord.Load()
	for end := tx.prodWord.Load(); cons != end; cons++ {
		comp.slots[prod&comp.mask()] = tx.slots[cons&tx.mask()].Addr
		prod++
	}
	tx.consWord.Store(cons)
	comp.prodWord.Store(prod)
}

func BenchmarkReceiveRecycle(b *testing.B) {
	c, k := newBenchCore()
	c.Fill(1024)
	var got [benchBatch]Received
	for i := 0; i < b.N; {
		k.loop()
		for n := 1; n > 0; i += n {
			n = c.Receive(got[:])
			for _, r := range got[:n] {
				_ = c.Packet(r)[0]
			}
			c.Recycle(got[:n])
		}
	}
}

func BenchmarkPostReap(b *testing.B) {
	c, k := newBenchCore()
	var sent [benchBatch]Sent
	for i := 0; i < b.N; i += benchBatch {
		for range benchBatch {
			frame, buf, ok := c.Acquire()
			if !ok {
				b.Fatal("no frame")
			}
			buf[0] = 1
			if err := c.Post(frame, 64, 7); err != nil {
				b.Fatal(err)
			}
		}
		c.Flush()
		k.done()
		c.Reap(sent[:])
	}
}
