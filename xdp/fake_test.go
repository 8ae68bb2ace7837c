package xdp

import "math/rand/v2"

// fakeKernel plays the kernel for a core that has no socket around it, over memory of the Go heap,
// where the race detector sees the packets too.
type fakeKernel struct {
	*Kernel
	mem []byte
}

// fakeConfig sizes a fake device. Zero values give 32 frames of 2048 bytes, half of them to send,
// and rings of 16.
type fakeConfig struct {
	frames, rxFrames, entries int
	start                     uint32 // of all indices
	chains                    bool
}

func newFake(c fakeConfig) (*core, *fakeKernel) {
	if c.frames == 0 {
		c.frames = 32
	}
	if c.rxFrames == 0 {
		c.rxFrames = c.frames / 2
	}
	if c.entries == 0 {
		c.entries = 16
	}
	n := uint32(c.entries)
	o := Options{RxEntries: n, TxEntries: n, FillEntries: n, CompEntries: n}
	g := Geometry{Frames: uint32(c.frames), ChunkBytes: 2048, HeadroomBytes: RecordBytes}
	mem := make([]byte, g.bytes())
	q := newSimQueue(o, c.start)
	p := newPool(mem, g, 0, g.Frames, g.Frames-uint32(c.rxFrames))
	p.fill = newProducer(q.fill.words(), q.fill.slots)
	p.comp = newConsumer(q.comp.words(), q.comp.slots)
	k := newFakeMember(p, q, o, c)
	return p.members[0], k
}

// newFakeMember adds a core to a pool.
func newFakeMember(p *pool, q *simQueue, o Options, c fakeConfig) *fakeKernel {
	e := &core{maxPacket: 1518, mtu: 1500, chains: c.chains}
	if c.chains {
		e.maxPacket, e.mtu = 1728, 9000
	}
	p.join(e)
	k := newKernel(e, q, o, c.start)
	k.HoldCompletions(true)
	return &fakeKernel{Kernel: k, mem: p.mem}
}

func (k *fakeKernel) deliver(packet []byte) bool { return k.Deliver(packet) }

// begin takes one packet to be sent.
func (k *fakeKernel) begin() bool { return k.Transmit(1) == 1 }

// finish completes one of the packets begun, any of them.
func (k *fakeKernel) finish(pick int) bool {
	n := k.Sending()
	return n > 0 && k.CompleteAt(pick%n)
}

// lie says something that a kernel must not.
func (k *fakeKernel) lie(r *rand.Rand) {
	addr := r.Uint64N(uint64(len(k.mem)) + 4096)
	if r.IntN(8) == 0 {
		addr = r.Uint64()
	}
	switch r.IntN(3) {
	case 0:
		k.ForgeReceive(Desc{Addr: addr, Len: r.Uint32N(4096), Options: r.Uint32N(2)})
	case 1:
		k.ForgeCompletion(addr)
	case 2:
		k.ForgeReceive(Desc{Addr: addr &^ 2047, Len: r.Uint32()})
	}
}
